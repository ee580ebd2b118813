// How a client verifies the server and identifies itself.
#ifndef ROUTING_REPLAY_SECURITY_H_
#define ROUTING_REPLAY_SECURITY_H_

#include <string>

namespace routing_replay {

// Empty fields are taken from the environment: ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and _TOKEN_FILE.
// Files are read again: the token's for every call, the others' for every new connection.
struct SecuritySettings {
  bool tls = false;    // Encrypt, trusting the system's authorities; cacert or cert imply it. "unix:" stays plaintext.
  std::string cacert;  // PEM file: authorities that sign servers' certificates.
  std::string cert;    // PEM file: the client's own certificate, if servers ask for one, …
  std::string key;     // … and its key.
  std::string server_name;  // The name in the server's certificate, if it is not the one in the endpoint.
  // Its first line is a bearer token that is sent with every call. Over a connection without encryption it is sent only
  // to addresses of this machine; calls elsewhere fail with INVALID_ARGUMENT (field token_file).
  std::string token_file;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_SECURITY_H_
