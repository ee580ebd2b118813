#include "server/operations/http/http_session.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <sstream>
#include <utility>

namespace routing_replay::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using tcp = boost::asio::ip::tcp;

// For a client's close_notify: it has the answer, and few send one.
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
  const size_t question = request.path.find('?');
  if (question != std::string::npos) {
    request.query = request.path.substr(question + 1);
    request.path.resize(question);
  }
  return request;
}

bool IsLoopback(const boost::asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

// What the parser makes of a request that is none, or too large.
int CodeOf(beast::error_code error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  return error.category() == http::make_error_code(http::error::bad_method).category() ? 400 : 0;
}

using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// `Stream`: PlainStream or TlsStream.
template <typename Stream>
class Session final : public WaitingSession, public std::enable_shared_from_this<Session<Stream>> {
 public:
  // `keep`: what the stream uses.
  Session(Stream stream, std::shared_ptr<void> keep, HttpSessions& sessions)
      : keep_(std::move(keep)), stream_(std::move(stream)), sessions_(sessions) {
    ++sessions_.open;
    parser_.header_limit(static_cast<uint32_t>(sessions_.options.max_header_bytes));
    parser_.body_limit(sessions_.options.max_body_bytes);
  }
  ~Session() override {
    sessions_.Forget(waiting_);
    --sessions_.open;
  }

  void Start() {
    waiting_ = sessions_.Await(this->weak_from_this());
    SetDeadline(sessions_.options.timeout);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      stream_.async_handshake(boost::asio::ssl::stream_base::server,
                              [self = this->shared_from_this()](beast::error_code error) {
                                if (!error) self->Read();
                              });
    } else {
      Read();
    }
  }

  void Cut() override {
    boost::asio::post(stream_.get_executor(),
                      [self = this->shared_from_this()] { beast::get_lowest_layer(self->stream_).close(); });
  }

 private:
  void SetDeadline(std::chrono::milliseconds after) { beast::get_lowest_layer(stream_).expires_after(after); }

  void Read() {
    SetDeadline(sessions_.options.timeout);
    http::async_read(stream_, buffer_, parser_,
                     [self = this->shared_from_this()](beast::error_code error, size_t) { self->OnRead(error); });
  }

  void OnRead(beast::error_code error) {
    sessions_.Forget(waiting_);
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
    waiting_ = sessions_.Await(this->weak_from_this());  // Not while the handler ran: the port waits for the client.
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
  uint64_t waiting_ = 0;
  beast::flat_buffer buffer_;
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> response_;
};

}  // namespace

bool HttpSessions::MakeRoom() {
  if (open < options.max_connections) return true;
  std::shared_ptr<WaitingSession> oldest;
  {
    MutexLock lock(mutex_);
    while (oldest == nullptr && !waiting_.empty()) {
      oldest = waiting_.begin()->second.lock();
      waiting_.erase(waiting_.begin());
    }
  }
  if (oldest == nullptr) return false;
  oldest->Cut();
  return true;
}

uint64_t HttpSessions::Await(std::weak_ptr<WaitingSession> session) {
  MutexLock lock(mutex_);
  waiting_.emplace(++next_, std::move(session));
  return next_;
}

void HttpSessions::Forget(uint64_t waiting) {
  MutexLock lock(mutex_);
  waiting_.erase(waiting);
}

void StartHttpSession(tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls, HttpSessions& sessions) {
  if (tls == nullptr) {
    std::make_shared<Session<PlainStream>>(PlainStream(std::move(socket)), nullptr, sessions)->Start();
  } else {
    TlsStream stream(std::move(socket), *tls);
    std::make_shared<Session<TlsStream>>(std::move(stream), std::move(tls), sessions)->Start();
  }
}

}  // namespace routing_replay::server
