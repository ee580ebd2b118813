// How a client verifies the server and identifies itself.
#ifndef ROUTING_REPLAY_SECURITY_H_
#define ROUTING_REPLAY_SECURITY_H_

#include <compare>
#include <string>

namespace routing_replay {

// Empty fields are taken from the environment: ROUTING_REPLAY_TLS, _CACERT, _CERT, _KEY, _SERVER_NAME and _TOKEN_FILE.
// Files may change while the client runs: the token file is read for every call, the others for every new connection.
struct SecuritySettings {
  bool tls = false;         // Use TLS; cacert or cert implies it. Without cacert, trust the system. Not on "unix:".
  std::string cacert;       // PEM file with the certificate authorities that signed the server's certificate.
  std::string cert;         // PEM file with the client's own certificate, for servers that ask for one.
  std::string key;          // PEM file with the private key of `cert`.
  std::string server_name;  // The name in the server's certificate, if it is not the one in the endpoint.
  // A file whose first line is a bearer token, which is sent with every call. Without TLS the token is sent only to
  // addresses of this machine; calls to other addresses fail with INVALID_ARGUMENT (field token_file).
  std::string token_file;
  friend auto operator<=>(const SecuritySettings&, const SecuritySettings&) = default;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_SECURITY_H_
