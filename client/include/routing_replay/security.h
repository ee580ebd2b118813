// How a client knows the server, and shows who it is.
#ifndef ROUTING_REPLAY_SECURITY_H_
#define ROUTING_REPLAY_SECURITY_H_

#include <string>

namespace routing_replay {

// What is left empty is taken from the environment: ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and
// _TOKEN_FILE. Files are read again: the token's for every call, the others' for every new connection.
struct SecuritySettings {
  bool tls = false;    // Encrypt, with the system's authorities; cacert or cert mean it, too. "unix:" stays plaintext.
  std::string cacert;  // PEM file: who signs servers' certificates.
  std::string cert;    // PEM file: the client's own certificate, where servers ask for one, …
  std::string key;     // … and its key.
  std::string server_name;  // The name in the server's certificate, where it is not the one in the endpoint.
  // Its first line is a bearer token that is sent with every call. Over a connection that is not encrypted it goes to
  // addresses of this machine alone; elsewhere calls fail with INVALID_ARGUMENT (field token_file).
  std::string token_file;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_SECURITY_H_
