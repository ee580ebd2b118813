#include "server/direct/direct_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/status_macros.h"
#include "proto/wire/tls/tls_stream.h"

namespace routing_replay::server {

// A listening socket. If no descriptor or memory is free, it stops accepting until the next second.
class DirectServer::Acceptor final : public LoopSocket {
 public:
  Acceptor(DirectServer& server, DirectLoop& loop, int fd) : server_(server), loop_(loop), fd_(fd) {}

  void OnReady(uint32_t /*events*/) override {
    if (server_.stopped_) return Close();
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = accept4(fd_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) return server_.TakeIn(fd, PeerOf(address));
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    server_.told_(ConnectionEvent::kWaiting);
    resting_ = true;
    loop_.Watch(number_, fd_, 0);
  }
  void OnSecond(std::chrono::steady_clock::time_point /*now*/) override {
    if (server_.stopped_) return Close();
    if (std::exchange(resting_, false)) loop_.Watch(number_, fd_, EPOLLIN);
  }
  void Close() override { loop_.Forget(number_, fd_); }
  void set_number(uint64_t number) { number_ = number; }

 private:
  DirectServer& server_;
  DirectLoop& loop_;
  const int fd_;
  uint64_t number_ = 0;
  bool resting_ = false;
};

DirectServer::DirectServer(ServiceContext& context, const ServedTls* tls, const ConnectionLimits& limits, Told told)
    : context_(context), tls_(tls), told_(std::move(told)), tickets_(context.clock), table_(limits) {
  for (int i = 0; i < context.config.threads; ++i) loops_.push_back(std::make_unique<DirectLoop>());
}

absl::StatusOr<std::unique_ptr<DirectServer>> DirectServer::Listen(ServiceContext& context,
                                                                   const DirectListener& listener, const ServedTls* tls,
                                                                   const ConnectionLimits& limits, Told told) {
  std::unique_ptr<DirectServer> server(new DirectServer(context, tls, limits, std::move(told)));
  RR_RETURN_IF_ERROR(server->FollowTls());
  RR_RETURN_IF_ERROR(server->Open(listener));
  // With TLS there is no Unix socket, because every user of this machine could connect to it without TLS.
  if (tls == nullptr) RR_RETURN_IF_ERROR(server->OpenUnix());
  context.direct.encrypted = tls != nullptr;
  context.direct.tickets = &server->tickets_;
  return server;
}

absl::Status DirectServer::Open(const DirectListener& listener) {
  const std::string& address = listener.address;
  if (address.empty()) return absl::OkStatus();
  auto socket = ListeningSocket::Open(address);
  if (!socket.ok() && listener.or_any_port) {
    return Open({.address = absl::StrCat(address.substr(0, address.rfind(':')), ":0")});
  }
  if (!socket.ok()) return socket.status();
  address_ = socket->address();
  fds_ = socket->fds();
  sockets_.push_back(*std::move(socket));
  return absl::SimpleAtoi(address_.substr(address_.rfind(':') + 1), &context_.direct.port)
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("cannot listen on ", address));
}

absl::Status DirectServer::OpenUnix() {
  // Without a name in the address, the system chooses an unused abstract name.
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = sizeof(name.sun_family);
  unix_fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  if (unix_fd_ < 0 || bind(unix_fd_, generic, size) != 0 || listen(unix_fd_, SOMAXCONN) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on a Unix socket: ", std::strerror(errno)));
  }
  size = sizeof(name);
  getsockname(unix_fd_, generic, &size);
  context_.direct.unix_socket.assign(name.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1);
  fds_.push_back(unix_fd_);
  return absl::OkStatus();
}

DirectServer::~DirectServer() {
  ShutdownAndJoin();
  if (unix_fd_ >= 0) close(unix_fd_);
}

void DirectServer::Start() {
  DirectLoop& loop = *loops_[0];
  for (const int fd : fds_) {
    auto acceptor = std::make_shared<Acceptor>(*this, loop, fd);
    acceptor->set_number(loop.Add(acceptor, fd, EPOLLIN));
  }
  for (const auto& one : loops_) one->Start();
}

absl::Status DirectServer::FollowTls() {
  if (tls_ == nullptr) return absl::OkStatus();
  auto texts = tls_->texts();
  if (texts == tls_texts_) return absl::OkStatus();
  tls_texts_ = std::move(texts);
  auto context = ServerTlsContext(tls_texts_->certificate, tls_texts_->key, tls_texts_->client_ca);
  if (!context.ok()) return absl::UnavailableError(absl::StrCat("--tls-cert, --tls-key: ", context.status().message()));
  tls_context_ = *std::move(context);
  return absl::OkStatus();
}

void DirectServer::TakeIn(int fd, const Peer& peer) {
  std::optional<ConnectionTable::Id> id;
  {
    MutexLock lock(mutex_);
    id = table_.Enter(peer, std::chrono::steady_clock::now());
  }
  if (!id) {
    close(fd);
    return told_(ConnectionEvent::kRejected);
  }
  told_(ConnectionEvent::kOpened);
  peer.address.empty() ? PrepareUnix(fd) : PrepareTcp(fd);
  DirectLoop& loop = *loops_[next_loop_++ % loops_.size()];
  const auto closed = [this, id = *id] {
    MutexLock lock(mutex_);
    table_.Leave(id);
    told_(ConnectionEvent::kEnded);
  };
  FollowTls().IgnoreError();  // After an error the previous certificates stay in use.
  loop.Run([this, &loop, fd, name = peer.name, closed, tls = tls_context_] {
    std::unique_ptr<ByteStream> stream;
    if (tls != nullptr) {
      stream = TlsStream::Accept(tls, fd);
    } else {
      stream = std::make_unique<SocketStream>(fd);
    }
    ServeDirectConnection(context_, loop, std::move(stream), name, closed);
  });
}

void DirectServer::Drain() {
  stopped_ = true;
  for (const int fd : fds_) shutdown(fd, SHUT_RDWR);  // New connections are refused from here on.
  for (const auto& loop : loops_) loop->Drain();
}

void DirectServer::ShutdownAndJoin() {
  stopped_ = true;
  for (const auto& loop : loops_) loop->ShutdownAndJoin();
  loops_.clear();
}

}  // namespace routing_replay::server
