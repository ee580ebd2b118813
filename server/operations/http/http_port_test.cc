#include "server/operations/http/http_port.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::testing {
namespace {

using std::chrono::milliseconds;

class HttpPortTest : public ::testing::Test {
 protected:
  void Start(HttpPortOptions options = {}) {
    options.address = "127.0.0.1:0";
    const auto echo = [this](const HttpRequest& request) {
      ++calls_;
      return HttpResponse{.body = absl::StrCat(request.method, " ", request.path, " ?", request.query, " ",
                                               request.authorization, " ", request.body)};
    };
    ASSERT_OK_AND_ASSIGN(port_, HttpPort::Start(options, echo));
  }
  std::string Ask(const std::string& bytes) {
    const HttpConnection connection(port_->address());
    connection.Send(bytes);
    return connection.ReceiveAll();
  }

  std::atomic<int> calls_{0};
  std::unique_ptr<HttpPort> port_;
};

TEST_F(HttpPortTest, HandsOverTheRequestAndEndsTheConnection) {
  Start();
  const std::string answer =
      Ask("POST /a/../b%2f?x=1&y HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\nPOST /a/../b%2f ?x=1&y Bearer t body")) << answer;
  EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("X-Content-Type-Options: nosniff\r\n"), std::string::npos) << answer;
}

TEST_F(HttpPortTest, HeadHasTheLengthAndNoBody) {
  Start();
  const std::string answer = Ask("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 11\r\n"), std::string::npos) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\n")) << answer;
}

TEST_F(HttpPortTest, WhatIsTooLargeOrNoRequestDoesNotReachTheHandler) {
  Start({.max_header_bytes = 1024, .max_body_bytes = 10});
  EXPECT_TRUE(absl::StartsWith(Ask(absl::StrCat("GET / HTTP/1.1\r\nX: ", std::string(5000, 'x'), "\r\n\r\n")),
                               "HTTP/1.1 431 "));
  EXPECT_TRUE(
      absl::StartsWith(Ask(absl::StrCat("GET /", std::string(5000, 'x'), " HTTP/1.1\r\n\r\n")), "HTTP/1.1 431 "));
  EXPECT_TRUE(absl::StartsWith(Ask("POST / HTTP/1.1\r\nContent-Length: 11\r\n\r\n"), "HTTP/1.1 413 "));
  EXPECT_TRUE(absl::StartsWith(
      Ask("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n"), "HTTP/1.1 413 "));
  EXPECT_TRUE(absl::StartsWith(Ask("no request\r\n\r\n"), "HTTP/1.1 400 "));
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpPortTest, ClientsThatSendNothingHoldNoThreadAndAreCutOff) {
  Start({.threads = 1, .timeout = milliseconds(300)});
  std::vector<std::unique_ptr<HttpConnection>> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(port_->address()));
    slow.back()->Send("GET / HTTP/1.1\r\nX-Slow: ");
  }
  EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 "));
  for (const auto& connection : slow) EXPECT_EQ(connection->ReceiveAll(), "");
}

// Many clients that send nothing keep nobody out who asks.
TEST_F(HttpPortTest, OverTheLimitTheOldestWithoutARequestIsClosed) {
  Start({.timeout = std::chrono::seconds(60), .max_connections = 2});
  const HttpConnection oldest(port_->address());
  oldest.Send("GET");
  std::vector<std::unique_ptr<HttpConnection>> idle;
  for (int i = 0; i < 20; ++i) {
    idle.push_back(std::make_unique<HttpConnection>(port_->address()));
    EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 ")) << i;
  }
  EXPECT_EQ(oldest.ReceiveAll(), "");
}

// What a client that trusts `authority` is shown, in PEM, and answered. Empty: no connection.
struct TlsAnswer {
  std::string certificate;
  std::string body;
};
TlsAnswer TlsGet(const std::string& address, const std::string& authority) {
  TlsAnswer answer;
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_load_verify_locations(context, authority.c_str(), nullptr);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  BIO* connection = BIO_new_ssl_connect(context);
  BIO_set_conn_hostname(connection, address.c_str());
  SSL* ssl = nullptr;
  BIO_get_ssl(connection, &ssl);
  if (BIO_do_connect(connection) == 1) {
    BIO* memory = BIO_new(BIO_s_mem());
    X509* shown = SSL_get1_peer_certificate(ssl);
    PEM_write_bio_X509(memory, shown);
    char part[4096];
    answer.certificate.assign(part, static_cast<size_t>(std::max(0, BIO_read(memory, part, sizeof(part)))));
    X509_free(shown);
    BIO_free(memory);
    BIO_puts(connection, "GET / HTTP/1.1\r\n\r\n");
    for (int n; (n = BIO_read(connection, part, sizeof(part))) > 0;) answer.body.append(part, static_cast<size_t>(n));
  }
  BIO_free_all(connection);
  SSL_CTX_free(context);
  return answer;
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_F(HttpPortTest, WithACertificateItSpeaksHttpsAndFollowsTheFiles) {
  const ScratchDirectory directory;
  const std::string ca = directory.path() + "/ca", cert = directory.path() + "/cert", key = directory.path() + "/key";
  const TestAuthority authority;
  const TestIdentity first = authority.Issue(kLocalNames), second = authority.Issue(kLocalNames);
  WriteFile(ca, authority.certificate());
  WriteFile(cert, first.certificate);
  WriteFile(key, first.key);
  ManualClock clock;
  Start({.tls = {.certificate = cert, .key = key}, .tls_reload_interval = std::chrono::seconds(10), .clock = &clock});
  const TlsAnswer answer = TlsGet(port_->address(), ca);
  EXPECT_EQ(answer.certificate, first.certificate);
  EXPECT_TRUE(absl::StartsWith(answer.body, "HTTP/1.1 200 OK\r\n")) << answer.body;
  // Who speaks plaintext gets nothing, and nothing else changes.
  EXPECT_EQ(Ask("GET / HTTP/1.1\r\n\r\n").find("HTTP/1.1 200"), std::string::npos);
  // A rotation that is half done is not looked at.
  WriteFile(cert, second.certificate);
  clock.Advance(std::chrono::seconds(10));
  EXPECT_EQ(TlsGet(port_->address(), ca).certificate, first.certificate);
  WriteFile(key, second.key);
  EXPECT_EQ(TlsGet(port_->address(), ca).certificate, first.certificate);
  clock.Advance(std::chrono::seconds(10));
  EXPECT_EQ(TlsGet(port_->address(), ca).certificate, second.certificate);
}

TEST_F(HttpPortTest, ACertificateThatCannotBeReadIsAnError) {
  const auto port = HttpPort::Start({.address = "127.0.0.1:0", .tls = {.certificate = "/nowhere", .key = "/nowhere"}},
                                    [](const HttpRequest&) { return HttpResponse(); });
  EXPECT_EQ(port.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HttpPortTest, AnAddressThatIsTakenIsAnError) {
  Start();
  const auto other = HttpPort::Start({.address = port_->address()}, [](const HttpRequest&) { return HttpResponse(); });
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(other.status().message().find(port_->address()), std::string::npos) << other.status();
}

}  // namespace
}  // namespace routing_replay::testing
