// HttpGet of http_client.h with TLS.
#ifndef TESTS_SUPPORT_HTTPS_CLIENT_H_
#define TESTS_SUPPORT_HTTPS_CLIENT_H_

#include <memory>
#include <string>

namespace routing_replay::testing {

// A connection that sends arbitrary bytes, and no close_notify before it is destroyed. If it cannot connect, it
// receives nothing.
class HttpsConnection {
 public:
  // `authority`: PEM of the CA certificate.
  HttpsConnection(const std::string& address, const std::string& authority);
  ~HttpsConnection();

  std::string certificate() const;  // PEM of the server's certificate.
  void Send(const std::string& bytes) const;
  // Receives until the peer's close_notify.
  std::string ReceiveAll() const;
  // Waits until the peer closes the socket, at most a minute without data. Returns whether it did. A close_notify is
  // not enough: it ends only the TLS session.
  bool IsClosed() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

// Both strings are empty if the connection failed.
struct HttpsAnswer {
  std::string certificate;  // PEM of the server's certificate.
  std::string text;         // The answer, with its headers.
};

HttpsAnswer HttpsGet(const std::string& address, const std::string& path, const std::string& authority);

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_HTTPS_CLIENT_H_
