// As HttpGet of http_client.h, with TLS.
#ifndef TESTS_SUPPORT_HTTPS_CLIENT_H_
#define TESTS_SUPPORT_HTTPS_CLIENT_H_

#include <string>

namespace routing_replay::testing {

// Empty: there was no connection.
struct HttpsAnswer {
  std::string certificate;  // That was shown, PEM.
  std::string text;         // The answer, with its headers.
};

// `authority`: PEM, of who is trusted to sign the server's certificate.
HttpsAnswer HttpsGet(const std::string& address, const std::string& path, const std::string& authority);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_HTTPS_CLIENT_H_
