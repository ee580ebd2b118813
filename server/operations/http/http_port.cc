#include "server/operations/http/http_port.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/operations/http/http_session.h"
#include "server/operations/http/tls_context.h"

namespace routing_replay::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr int kBacklog = 64;
// Until there may be a file descriptor again.
constexpr std::chrono::milliseconds kAcceptPause(100);

class AsioHttpPort final : public HttpPort {
 public:
  AsioHttpPort(const HttpPortOptions& options, HttpHandler handler) : sessions_(options, std::move(handler)) {}
  ~AsioHttpPort() override {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Listen() {
    if (sessions_.options.tls != nullptr) {
      auto tls = TlsContext::Create(*sessions_.options.tls);
      if (!tls.ok()) return tls.status();
      tls_ = *std::move(tls);
    }
    const std::string& address = sessions_.options.address;
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) return absl::UnavailableError(absl::StrCat(address, ": not host:port"));
    std::string host = address.substr(0, colon);
    if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
    error_code error;
    const auto found = tcp::resolver(io_).resolve(host, address.substr(colon + 1), tcp::resolver::passive, error);
    if (!error) Bind(found.begin()->endpoint(), error);
    if (error == asio::error::address_family_not_supported && host == "::") {
      Bind({tcp::v4(), found.begin()->endpoint().port()}, error);
    }
    if (error) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", error.message()));
    address_ = absl::StrCat(address.substr(0, colon + 1), acceptor_.local_endpoint(error).port());
    return absl::OkStatus();
  }

  void Run() {
    Accept();
    for (int i = 0; i < sessions_.options.threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  const std::string& address() const override { return address_; }

 private:
  void Bind(const tcp::endpoint& endpoint, error_code& error) {
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    // As gRPC's listeners do, whatever net.ipv6.bindv6only says.
    const bool every = endpoint.address() == asio::ip::address_v6::any();
    if (!error && every) acceptor_.set_option(asio::ip::v6_only(false), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
  }

  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](error_code error, tcp::socket socket) {
      if (error) {
        pause_.expires_after(kAcceptPause);
        return pause_.async_wait([this](error_code) { Accept(); });
      }
      if (sessions_.MakeRoom()) {
        StartHttpSession(std::move(socket), tls_ == nullptr ? nullptr : tls_->Get(), sessions_);
      }
      Accept();
    });
  }

  HttpSessions sessions_;  // Ends after io_, which has the sessions.
  asio::io_context io_;
  tcp::acceptor acceptor_{io_};
  std::unique_ptr<TlsContext> tls_;  // Null: plaintext. Used where connections are accepted.
  asio::steady_timer pause_{io_};
  std::string address_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const HttpPortOptions& options, HttpHandler handler) {
  auto port = std::make_unique<AsioHttpPort>(options, std::move(handler));
  if (absl::Status status = port->Listen(); !status.ok()) return status;
  port->Run();
  return port;
}

}  // namespace routing_replay::server
