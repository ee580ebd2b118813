#include "server/operations/http_port.h"

#include <fcntl.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "server/connections/accept_loop.h"

namespace routing_replay::server {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using boost::system::error_code;
using tcp = asio::ip::tcp;
namespace beast = boost::beast;
namespace http = beast::http;

// Time to wait for a client's TLS close_notify after the answer. Few clients send one.
constexpr std::chrono::milliseconds kShutdownPatience(500);

std::string Text(beast::string_view text) { return {text.data(), text.size()}; }

HttpRequest ToRequest(const http::request<http::string_body>& message) {
  HttpRequest request{.method = Text(message.method_string()),
                      .path = Text(message.target()),
                      .authorization = Text(message[http::field::authorization]),
                      .content_type = Text(message[http::field::content_type]),
                      .origin = Text(message[http::field::origin]),
                      .host = Text(message[http::field::host]),
                      .body = message.body()};
  request.path.resize(std::min(request.path.find('?'), request.path.size()));
  return request;
}

bool IsLoopback(const asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

// The HTTP status for a request that is malformed or too large; 0 for other errors, which get no answer.
int CodeOf(beast::error_code error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  return error.category() == http::make_error_code(http::error::bad_method).category() ? 400 : 0;
}

// State shared by the sessions of a port. Must outlive them.
struct HttpSessions {
  const HttpPortOptions options;
  const HttpHandler handler;
  std::atomic<int> open{0};
};

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// `Stream`: PlainStream or TlsStream.
template <typename Stream>
class Session final : public std::enable_shared_from_this<Session<Stream>> {
 public:
  // `keep`: an object that the stream uses and that must live as long; may be null.
  Session(Stream stream, std::shared_ptr<void> keep, HttpSessions& sessions)
      : keep_(std::move(keep)), stream_(std::move(stream)), sessions_(sessions) {
    ++sessions_.open;
    parser_.header_limit(static_cast<uint32_t>(sessions_.options.max_header_bytes));
    parser_.body_limit(sessions_.options.max_body_bytes);
  }
  ~Session() { --sessions_.open; }

  void Start() {
    SetDeadline(sessions_.options.timeout);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      stream_.async_handshake(ssl::stream_base::server, [self = this->shared_from_this()](beast::error_code error) {
        if (!error) self->Read();
      });
    } else {
      Read();
    }
  }

 private:
  void SetDeadline(std::chrono::milliseconds after) { beast::get_lowest_layer(stream_).expires_after(after); }

  void Read() {
    SetDeadline(sessions_.options.timeout);
    http::async_read(stream_, buffer_, parser_,
                     [self = this->shared_from_this()](beast::error_code error, size_t) { self->OnRead(error); });
  }

  void OnRead(beast::error_code error) {
    if (!error) {
      const bool head = parser_.get().method() == http::verb::head;
      HttpRequest request = ToRequest(parser_.get());
      beast::error_code no_peer;
      const auto peer = beast::get_lowest_layer(stream_).socket().remote_endpoint(no_peer);
      request.from_here = !no_peer && IsLoopback(peer.address());
      if (!no_peer) request.peer = (std::ostringstream() << peer).str();
      return Answer(sessions_.handler(request), head);
    }
    const int code = error == http::error::end_of_stream ? 0 : CodeOf(error);
    if (code != 0) Answer({.code = code, .body = std::string(http::obsolete_reason(http::status(code))) + "\n"}, false);
  }

  void Answer(HttpResponse response, bool head) {
    response_.version(11);
    response_.result(static_cast<unsigned>(response.code));
    response_.set(http::field::content_type, response.content_type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : response.headers) response_.set(name, value);
    response_.keep_alive(false);
    response_.content_length(response.body.size());
    if (!head) response_.body() = std::move(response.body);
    SetDeadline(sessions_.options.timeout);
    http::async_write(stream_, response_,
                      [self = this->shared_from_this()](beast::error_code error, size_t) { self->OnWritten(error); });
  }

  void OnWritten(beast::error_code error) {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      if (error) return;
      SetDeadline(std::min(sessions_.options.timeout, kShutdownPatience));
      stream_.async_shutdown([self = this->shared_from_this()](beast::error_code) {});
    } else {
      stream_.socket().shutdown(tcp::socket::shutdown_send, error);
    }
  }

  const std::shared_ptr<void> keep_;
  Stream stream_;
  HttpSessions& sessions_;
  beast::flat_buffer buffer_;
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
};

void StartHttpSession(tcp::socket socket, std::shared_ptr<ssl::context> tls, HttpSessions& sessions) {
  if (tls == nullptr) {
    std::make_shared<Session<PlainStream>>(PlainStream(std::move(socket)), nullptr, sessions)->Start();
  } else {
    TlsStream stream(std::move(socket), *tls);
    std::make_shared<Session<TlsStream>>(std::move(stream), std::move(tls), sessions)->Start();
  }
}

// Clients are not asked for certificates, because probes have none.
absl::StatusOr<std::shared_ptr<ssl::context>> MakeTlsContext(const TlsTexts& texts) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1, error);
  if (!error) context->use_certificate_chain(asio::buffer(texts.certificate), error);
  if (!error) context->use_private_key(asio::buffer(texts.key), ssl::context::pem, error);
  if (error) return absl::UnavailableError(absl::StrCat("--tls-cert, --tls-key: ", error.message()));
  return context;
}

// Pause after an error of accept, such as no free file descriptor.
constexpr std::chrono::milliseconds kAcceptPause(100);

class AsioHttpPort final : public HttpPort {
 public:
  AsioHttpPort(const HttpPortOptions& options, HttpHandler handler) : sessions_{options, std::move(handler)} {}
  ~AsioHttpPort() override {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Start() {
    RR_RETURN_IF_ERROR(FollowTls());
    RR_ASSIGN_OR_RETURN(const auto socket, ListeningSocket::Open(sessions_.options.address));
    address_ = socket.address();
    for (const int fd : socket.fds()) {
      Accept(acceptors_.emplace_back(strand_, tcp::v6(), fcntl(fd, F_DUPFD_CLOEXEC, 0)));
    }
    for (int i = 0; i < sessions_.options.threads; ++i) threads_.emplace_back([this] { io_.run(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }

 private:
  void Accept(tcp::acceptor& acceptor) {
    acceptor.async_accept(asio::make_strand(io_), [this, &acceptor](error_code error, tcp::socket socket) {
      if (error) {
        pause_.expires_after(kAcceptPause);
        return pause_.async_wait([this, &acceptor](error_code) { Accept(acceptor); });
      }
      FollowTls().IgnoreError();  // On an error, new connections use the previous files.
      if (sessions_.open < sessions_.options.max_connections) StartHttpSession(std::move(socket), tls_, sessions_);
      Accept(acceptor);
    });
  }

  absl::Status FollowTls() {
    if (sessions_.options.tls == nullptr) return absl::OkStatus();
    auto texts = sessions_.options.tls->texts();
    if (texts == tls_texts_) return absl::OkStatus();
    tls_texts_ = std::move(texts);
    auto tls = MakeTlsContext(*tls_texts_);
    if (tls.ok()) tls_ = *tls;
    return tls.status();
  }

  HttpSessions sessions_;  // Destroyed after io_, which holds the sessions.
  asio::io_context io_;
  // Serializes the work of the acceptors. The members from acceptors_ to pause_ are used only on this strand.
  asio::strand<asio::io_context::executor_type> strand_{io_.get_executor()};
  std::list<tcp::acceptor> acceptors_;
  std::shared_ptr<ssl::context> tls_;  // Null: plaintext.
  std::shared_ptr<const TlsTexts> tls_texts_;
  asio::steady_timer pause_{strand_};
  std::string address_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpPort>> HttpPort::Start(const HttpPortOptions& options, HttpHandler handler) {
  auto port = std::make_unique<AsioHttpPort>(options, std::move(handler));
  RR_RETURN_IF_ERROR(port->Start());
  return port;
}

}  // namespace routing_replay::server
