#include "server/operations/http_port.h"

#include <atomic>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/http_client.h"
#include "tests/support/https_client.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"
#include "tests/support/without_ipv6.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::milliseconds;

class HttpPortTest : public ::testing::Test {
 protected:
  void Start(HttpPortOptions options = {}) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    const auto echo = [this](const HttpRequest& request) {
      ++calls_;
      return HttpResponse{
          .body = absl::StrCat(request.method, " ", request.path, " ", request.authorization, " ", request.body)};
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
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\nPOST /a/../b%2f Bearer t body")) << answer;
  EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
  EXPECT_NE(answer.find("X-Content-Type-Options: nosniff\r\n"), std::string::npos) << answer;
}

TEST_F(HttpPortTest, SaysWhoAsksAndByWhichName) {
  HttpPortOptions options;
  for (const char* address : {"127.0.0.1:0", "[::]:0"}) {
    options.address = address;
    ASSERT_OK_AND_ASSIGN(port_, HttpPort::Start(options, [](const HttpRequest& request) -> HttpResponse {
                           return {.body = absl::StrCat(request.host, request.from_here ? " from here" : " from afar")};
                         }));
    const std::string port = port_->address().substr(port_->address().rfind(':'));
    const HttpConnection connection("127.0.0.1" + port);
    connection.Send("GET / HTTP/1.1\r\nHost: a.example:1\r\n\r\n");
    EXPECT_TRUE(absl::EndsWith(connection.ReceiveAll(), "\r\n\r\na.example:1 from here")) << address;
  }
}

TEST_F(HttpPortTest, HeadHasTheLengthAndNoBody) {
  Start();
  const std::string answer = Ask("HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(answer.find("Content-Length: 9\r\n"), std::string::npos) << answer;
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

TEST_F(HttpPortTest, OverTheLimitConnectionsAreClosedAtOnceUntilOthersEnd) {
  Start({.timeout = std::chrono::seconds(60), .max_connections = 2});
  std::vector<std::unique_ptr<HttpConnection>> slow;
  for (int i = 0; i < 2; ++i) {
    slow.push_back(std::make_unique<HttpConnection>(port_->address()));
    slow.back()->Send("GET");
  }
  EXPECT_EQ(HttpConnection(port_->address()).ReceiveAll(), "");
  slow.clear();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < end && Ask("GET / HTTP/1.1\r\n\r\n").empty()) {
  }
  EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 "));
}

TEST_F(HttpPortTest, EveryAddressIsServedAlsoWithoutIpv6) {
  Start({.address = "[::]:0"});
  EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 "));
  if (!RunWithoutIpv6([&] { Start({.address = "[::]:0"}); })) GTEST_SKIP() << "no seccomp filter for a thread here";
  EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 "));
}

void WriteFile(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST_F(HttpPortTest, WithACertificateItSpeaksHttpsAndShowsWhatIsServed) {
  const ScratchDirectory directory;
  const std::string cert = directory.path() + "/cert", key = directory.path() + "/key";
  const TestAuthority authority;
  const TestIdentity first = authority.Issue(kLocalNames), second = authority.Issue(kLocalNames);
  WriteFile(cert, first.certificate);
  WriteFile(key, first.key);
  ASSERT_OK_AND_ASSIGN(const auto served, ServedTls::Create({.certificate = cert, .key = key, .client_ca = ""}));
  Start({.tls = served.get()});
  const auto get = [&] { return HttpsGet(port_->address(), "/", authority.certificate()); };
  const HttpsAnswer answer = get();
  EXPECT_EQ(answer.certificate, first.certificate);
  EXPECT_TRUE(absl::StartsWith(answer.text, "HTTP/1.1 200 OK\r\n")) << answer.text;
  // A plaintext client gets no answer, and other clients are not affected.
  EXPECT_EQ(Ask("GET / HTTP/1.1\r\n\r\n").find("HTTP/1.1 200"), std::string::npos);
  // The port presents the same certificate as the listeners, even if the files have changed.
  WriteFile(cert, second.certificate);
  EXPECT_FALSE(served->Reload().ok());
  EXPECT_EQ(get().certificate, first.certificate);
  WriteFile(key, second.key);
  EXPECT_EQ(get().certificate, first.certificate);
  ASSERT_OK(served->Reload());
  EXPECT_EQ(get().certificate, second.certificate);
}

// A client that has its answer but sends no close_notify is disconnected before the timeout.
TEST_F(HttpPortTest, HttpsEndsWithoutTheClientsCloseNotify) {
  const ScratchDirectory directory;
  const TestAuthority authority;
  const TestIdentity identity = authority.Issue(kLocalNames);
  WriteFile(directory.path() + "/cert", identity.certificate);
  WriteFile(directory.path() + "/key", identity.key);
  ASSERT_OK_AND_ASSIGN(const auto served, ServedTls::Create({.certificate = directory.path() + "/cert",
                                                             .key = directory.path() + "/key",
                                                             .client_ca = ""}));
  Start({.timeout = std::chrono::minutes(10), .tls = served.get()});
  const HttpsConnection held(port_->address(), authority.certificate());
  held.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(absl::StartsWith(held.ReceiveAll(), "HTTP/1.1 200 "));
  EXPECT_TRUE(held.IsClosed());
}

TEST_F(HttpPortTest, AnAddressThatIsTakenIsAnError) {
  Start();
  const auto other = HttpPort::Start({.address = port_->address()}, [](const HttpRequest&) { return HttpResponse(); });
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(other.status().message().find(port_->address()), std::string::npos) << other.status();
}

}  // namespace
}  // namespace routing_replay::testing
