#include "server/connections/accept_loop.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "server/operations/log/event_log.h"

namespace routing_replay::server {
namespace {

// An attacker begins some thousand calls from one round to the next. To ask a connection for its bytes costs 1 to 2 us,
// a look at its calls about 20 us.
constexpr std::chrono::milliseconds kRound(20), kDescriptorWait(100);
constexpr size_t kAskedAtATime = 500, kLooksAtATime = 50;
// Since the last look; fewer hold no calls that matter.
constexpr uint64_t kFewBytes = 16 << 10;
// One connection takes two descriptors, and files and other ports want theirs.
constexpr int64_t kDescriptorsPerConnection = 4, kFewestConnections = 8;
// What is read at a time is worked through as a whole, cut or not; of it, a call that is taken back takes 30 bytes.
constexpr int kReadBytes = 64 << 10;
// A tag is the id of a connection, or, where this bit is set, the number of a listening descriptor.
constexpr uint64_t kListenerBit = uint64_t{1} << 63;
constexpr uint64_t kWakeTag = 0;
constexpr std::chrono::seconds kTellAgain(10);

// That were read since the connection began, and not only received; 0 for a Unix socket.
uint64_t ReadBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  int unread = 0;
  ioctl(fd, FIONREAD, &unread);
  return info.tcpi_bytes_received - std::min<uint64_t>(info.tcpi_bytes_received, static_cast<uint64_t>(unread));
}

// What has come and was not read yet holds more calls. Where gRPC reads a part of it meanwhile, it finds no frames
// there, or none that can be decrypted, which ends the connection as well.
void ThrowUnreadAway(int fd) {
  constexpr size_t kMost = 1 << 20;
  while (recv(fd, nullptr, kMost, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

// At once, with what was not read yet: a peer whose bytes nobody reads would wait, and hold what it holds.
void Reset(int fd) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(fd, &none, sizeof(none));
  ThrowUnreadAway(fd);
}

}  // namespace

ConnectionLimits WithinDescriptors(ConnectionLimits limits) {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  const auto most = static_cast<int64_t>(std::min<rlim_t>(descriptors.rlim_cur, INT64_MAX)) / kDescriptorsPerConnection;
  limits.connections = std::min(limits.connections, std::max(most, kFewestConnections));
  return limits;
}

AcceptLoop::AcceptLoop(const ConnectionLimits& limits, Told told)
    : told_(std::move(told)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      table_(limits),
      told_lines_(routing_replay::Clock::Real(), kTellAgain) {
  Watch(wake_, EPOLLIN, kWakeTag);
}

AcceptLoop::~AcceptLoop() {
  stop_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  hand_over_.Finish();
  for (const auto& [id, connection] : connections_) close(connection.fd);
  close(wake_);
  close(epoll_);
}

absl::StatusOr<std::string> AcceptLoop::Listen(grpc::ServerBuilder& builder, const std::string& address,
                                               std::shared_ptr<grpc::ServerCredentials> credentials) {
  auto socket = ListeningSocket::Open(address);
  if (!socket.ok()) return socket.status();
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::move(credentials));
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytes);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);
  listeners_.push_back({*std::move(socket), std::move(acceptor)});
  return listeners_.back().socket.address();
}

void AcceptLoop::Start() {
  SetListening(true);
  thread_ = std::thread([this] { Run(); });
}

void AcceptLoop::StopListening() {
  stop_listening_ = true;
  Wake();
}

void AcceptLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void AcceptLoop::Watch(int fd, uint32_t events, uint64_t tag) const {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void AcceptLoop::SetListening(bool listening) {
  if (listening == listening_) return;
  listening_ = listening;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    for (const int fd : listeners_[i].socket.fds()) {
      if (listening) Watch(fd, EPOLLIN, kListenerBit | i << 32 | static_cast<uint64_t>(fd));
      if (!listening) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    }
  }
}

void AcceptLoop::Run() {
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  auto look = Clock::now();
  while (!stop_) {
    const bool idle = connections_.empty() && (listening_ || stop_listening_);
    const int count = epoll_wait(epoll_, events, kEvents, idle ? -1 : static_cast<int>(kRound.count()));
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t times;
        [[maybe_unused]] const ssize_t got = read(wake_, &times, sizeof(times));
      } else if ((tag & kListenerBit) == 0) {
        if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0) End(tag);
      } else if (listening_) {
        Accept(listeners_[(tag & ~kListenerBit) >> 32], static_cast<int>(tag & UINT32_MAX));
      }
    }
    const auto now = Clock::now();
    if (stop_listening_) {
      SetListening(false);
      listeners_.clear();
    } else if (!listening_ && now >= resume_) {
      SetListening(true);
    }
    if (now - look < kRound) continue;
    look = now;
    LookAtCalls();
  }
}

void AcceptLoop::Accept(const Listener& listener, int listening_fd) {
  // A few, so that nobody who floods keeps this thread from the calls.
  constexpr int kAtATime = 16;
  for (int i = 0; i < kAtATime; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = accept4(listening_fd, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) WaitForDescriptors();
      return;  // Whatever else it was, it was that connection's end, or epoll tells of it again.
    }
    const Peer peer = PeerOf(address);
    const auto id = table_.Enter(peer, Clock::now());
    if (!id) {
      Tell(ConnectionEvent::kRefused, "connection_refused", peer.name);
      close(fd);
      continue;
    }
    // gRPC closes its descriptor when it likes, and the number may then be another connection's. This one stays until
    // the connection is shut down in both directions, as gRPC does before it closes.
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
      close(fd);
      table_.Leave(*id);
      return WaitForDescriptors();
    }
    connections_.emplace(*id, Connection{.fd = own, .peer = peer.name});
    told_(ConnectionEvent::kOpened);
    Watch(own, EPOLLET, *id);  // Errors and hang-ups come unasked.
    HandOver(listener, listening_fd, fd, peer);
  }
}

void AcceptLoop::HandOver(const Listener& listener, int listening_fd, int fd, const Peer& peer) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const absl::Status taken = hand_over_.Run(peer.address, [acceptor = listener.acceptor, listening_fd, fd] {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listening_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  });
  if (taken.ok()) return;
  shutdown(fd, SHUT_RDWR);
  close(fd);
}

void AcceptLoop::WaitForDescriptors() {
  if (!listening_) return;
  SetListening(false);
  resume_ = Clock::now() + kDescriptorWait;
  Tell(ConnectionEvent::kWaiting, "no_descriptors", "");
}

void AcceptLoop::End(ConnectionTable::Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  ThrowUnreadAway(found->second.fd);  // Nobody is there any more who would have the answers.
  close(found->second.fd);
  counts_.Forget(found->second.peer);
  connections_.erase(found);
  table_.Leave(id);
  told_(ConnectionEvent::kEnded);
}

void AcceptLoop::LookAtCalls() {
  if (connections_.empty()) return;
  const auto now = Clock::now();
  counts_.LookAgain();
  auto next = connections_.upper_bound(last_asked_);
  size_t looks = 0;
  for (size_t i = 0; i < std::min(connections_.size(), kAskedAtATime) && looks < kLooksAtATime; ++i, ++next) {
    if (next == connections_.end()) next = connections_.begin();
    auto& [id, connection] = *next;
    last_asked_ = id;
    const uint64_t bytes = ReadBytes(connection.fd);
    if (bytes < connection.read_bytes + kFewBytes) continue;
    connection.read_bytes = bytes;
    ++looks;
    if (const auto counts = counts_.Of(connection.peer)) table_.SawCalls(id, *counts, now);
  }
  if (looks == 0) return;
  for (const ConnectionTable::Id id : table_.TakeSuspects(now)) {
    const Connection& connection = connections_.at(id);
    Reset(connection.fd);
    Tell(ConnectionEvent::kCut, "connection_cut", connection.peer);
  }
}

void AcceptLoop::Tell(ConnectionEvent event, const char* name, const std::string& peer) {
  told_(event);
  const auto held_back = told_lines_.Pass(name);
  if (!held_back) return;
  LogFields fields;
  if (!peer.empty()) fields.emplace_back("peer", peer);
  if (*held_back > 0) fields.emplace_back("held_back", *held_back);
  const char* why = event == ConnectionEvent::kRefused
                        ? "one more than max-connections, max-connections-per-address or "
                          "the pace after an attack allows"
                    : event == ConnectionEvent::kCut ? "it began calls and took them back, or left them, without end"
                                                     : "connections wait until descriptors are free; raise the limit "
                                                       "(ulimit -n, LimitNOFILE)";
  LogEvent(LogLevel::kWarning, name, why, fields);
}

}  // namespace routing_replay::server
