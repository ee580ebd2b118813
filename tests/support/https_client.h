// As HttpGet of http_client.h, with TLS.
#ifndef TESTS_SUPPORT_HTTPS_CLIENT_H_
#define TESTS_SUPPORT_HTTPS_CLIENT_H_

#include <memory>
#include <string>

namespace routing_replay::testing {

// A connection that sends what it is told to, and no close_notify before it is destroyed. One that cannot be had
// receives nothing.
class HttpsConnection {
 public:
  // `authority`: PEM, of who is trusted to sign the server's certificate.
  HttpsConnection(const std::string& address, const std::string& authority);
  ~HttpsConnection();

  std::string certificate() const;  // That was shown, PEM.
  void Send(const std::string& bytes) const;
  // Everything until the other side's close_notify.
  std::string ReceiveAll() const;
  // Whether the other side closes the socket, too, within a minute.
  bool IsClosed() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

// Empty: there was no connection.
struct HttpsAnswer {
  std::string certificate;  // That was shown, PEM.
  std::string text;         // The answer, with its headers.
};

HttpsAnswer HttpsGet(const std::string& address, const std::string& path, const std::string& authority);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_HTTPS_CLIENT_H_
