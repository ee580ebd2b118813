#include "server/connections/accept_loop.h"
#include "proto/wire/status_macros.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {
namespace {

constexpr char kUnix[] = "unix:";

// The error that errno names. ALREADY_EXISTS if the address is in use, UNAVAILABLE otherwise.
absl::Status Errno() {
  return absl::Status(errno == EADDRINUSE ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kUnavailable,
                      std::strerror(errno));
}

// Removes a socket file: the server's own, or that of an earlier server which crashed. Leaves files of other kinds.
void RemoveSocket(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path.c_str());
}

in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

absl::StatusOr<int> Bind(const sockaddr_storage& address, socklen_t size, bool both_families) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Errno();
  const int on = 1, only_v6 = both_families ? 0 : 1;
  if (address.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  const absl::Status status = Errno();
  close(fd);
  return status;
}

int64_t ToNumber(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

// An answer of channelz, gRPC's service that describes its own connections, in JSON. It is searched without parsing,
// because under attack every allocation competes with those of the attacker's calls. That is safe, because the only
// names in it are gRPC's own and addresses of peers, which cannot look like a key.
class Answer {
 public:
  explicit Answer(char* json) : json_(json) {}  // Null: gRPC does not know the requested object.

  // The text between `key` (with its quotes and colon) and the next quote; empty if the key does not occur again. The
  // next search begins behind this key.
  absl::string_view Next(absl::string_view key) {
    const size_t found = rest_.find(key);
    if (found == absl::string_view::npos) return {};
    rest_.remove_prefix(found + key.size());
    return rest_.substr(0, rest_.find('"'));
  }
  // The number after `key`, searched from the beginning. 0 if the key is missing: channelz omits zeros.
  int64_t Number(absl::string_view key) {
    rest_ = json_ == nullptr ? "" : json_.get();
    return ToNumber(Next(key));
  }

 private:
  struct Free {
    void operator()(char* text) const { gpr_free(text); }
  };
  const std::unique_ptr<char, Free> json_;
  absl::string_view rest_ = json_ == nullptr ? "" : json_.get();
};

// kRound: time between two rounds; an attacker can begin some thousand calls in it. A round reads the byte counts of at
// most kAskedAtATime connections (1 to 2 us each) and examines the calls of at most kLooksAtATime (20 us each).
constexpr std::chrono::milliseconds kRound(20), kDescriptorWait(100);
constexpr size_t kAskedAtATime = 500, kLooksAtATime = 50;
// A connection is examined only if it received at least this many bytes since the last time: fewer cannot hold many
// calls.
constexpr uint64_t kFewBytes = 16 << 10;
// A connection takes two descriptors. Twice that is reserved per connection, because files and other ports need
// descriptors, too.
constexpr int64_t kDescriptorsPerConnection = 4, kFewestConnections = 8;
// Most bytes that gRPC reads at a time. It processes them all even if the connection is cut meanwhile, and 30 bytes are
// enough to begin and cancel a call.
constexpr int kReadBytes = 64 << 10;
// An epoll tag is kWakeTag, the id of a connection or, with this bit set, a listener's index << 32 and its descriptor.
constexpr uint64_t kListenerBit = uint64_t{1} << 63;
constexpr uint64_t kWakeTag = 0;
constexpr std::chrono::seconds kTellAgain(10);

// Bytes of the connection that gRPC has read so far: without those that were only received. 0 for a Unix socket.
uint64_t ReadBytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  int unread = 0;
  ioctl(fd, FIONREAD, &unread);
  return info.tcpi_bytes_received - std::min<uint64_t>(info.tcpi_bytes_received, static_cast<uint64_t>(unread));
}

// Discards received bytes that were not read yet: they contain more calls. If gRPC reads a part of them at the same
// time, it finds invalid frames, or ones that it cannot decrypt, which ends the connection as well.
void ThrowUnreadAway(int fd) {
  constexpr size_t kMost = 1 << 20;
  while (recv(fd, nullptr, kMost, MSG_TRUNC | MSG_DONTWAIT) > 0) {
  }
}

// Resets the connection, so that both ends learn at once that it is closed, and drops unread bytes.
void Reset(int fd) {
  const sockaddr none{.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(fd, &none, sizeof(none));
  ThrowUnreadAway(fd);
}

constexpr size_t kNetworkBytes = 8;

Peer PeerOfV4(const void* bytes, in_port_t port) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, bytes, text, sizeof(text));
  return {.name = absl::StrCat("ipv4:", text, ":", ntohs(port)), .address = text};
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::Open(const std::string& address) {
  ListeningSocket socket;
  const bool local = absl::StartsWith(address, kUnix);
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  absl::Status status =
      local ? socket.OpenUnix(address.substr(sizeof(kUnix) - 1)) : socket.OpenTcp(host, address.substr(colon + 1));
  for (const int fd : socket.fds_) {
    if (status.ok() && listen(fd, SOMAXCONN) != 0) status = Errno();
  }
  if (!status.ok()) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", status.message()));
  if (local) {
    socket.address_ = address;
    return socket;
  }
  sockaddr_storage chosen{};
  socklen_t size = sizeof(chosen);
  getsockname(socket.fds_[0], reinterpret_cast<sockaddr*>(&chosen), &size);
  socket.address_ = absl::StrCat(address.substr(0, colon + 1), ntohs(PortOf(chosen)));
  return socket;
}

absl::Status ListeningSocket::OpenUnix(const std::string& path) {
  sockaddr_storage address{};
  auto& to = reinterpret_cast<sockaddr_un&>(address);
  if (path.size() >= sizeof(to.sun_path)) return absl::UnavailableError("the path is too long");
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.c_str(), path.size() + 1);
  RemoveSocket(path);
  RR_ASSIGN_OR_RETURN(auto fd, Bind(address, sizeof(sockaddr_un), false));
  fds_.push_back(fd);
  path_ = path;
  // Takes the access of others away, whatever the umask says, before listen() allows connections.
  struct stat status;
  if (stat(path.c_str(), &status) == 0) chmod(path.c_str(), status.st_mode & ALLPERMS & ~S_IRWXO);
  return absl::OkStatus();
}

absl::Status ListeningSocket::OpenTcp(const std::string& host, const std::string& port) {
  const bool all = host == "0.0.0.0" || host == "::";
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  absl::Status failure;
  in_port_t chosen = 0;
  for (const char* name : all ? std::vector<const char*>{"::", "0.0.0.0"} : std::vector<const char*>{host.c_str()}) {
    addrinfo* list = nullptr;
    if (const int error = getaddrinfo(name, port.c_str(), &hints, &list); error != 0) {
      failure.Update(absl::UnavailableError(gai_strerror(error)));
      continue;
    }
    const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
      sockaddr_storage address{};
      std::memcpy(&address, at->ai_addr, at->ai_addrlen);
      if (PortOf(address) == 0) PortOf(address) = chosen;
      const auto fd = Bind(address, at->ai_addrlen, all);
      if (absl::IsAlreadyExists(fd.status()) && port != "0") return fd.status();
      failure.Update(fd.status());
      if (!fd.ok()) continue;
      fds_.push_back(*fd);
      sockaddr_storage got{};
      socklen_t size = sizeof(got);
      getsockname(*fd, reinterpret_cast<sockaddr*>(&got), &size);
      chosen = PortOf(got);
      if (all) return absl::OkStatus();
    }
  }
  return fds_.empty() ? failure : absl::OkStatus();
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
    : fds_(std::exchange(other.fds_, {})),
      address_(std::move(other.address_)),
      path_(std::exchange(other.path_, std::string())) {}

ListeningSocket::~ListeningSocket() {
  for (const int fd : fds_) close(fd);
  if (!path_.empty()) RemoveSocket(path_);
}

Peer PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return PeerOfV4(&v4.sin_addr, v4.sin_port);
  }
  if (address.ss_family != AF_INET6) return {.name = "unix:", .address = ""};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return PeerOfV4(v6.sin6_addr.s6_addr + 12, v6.sin6_port);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  const std::string scope = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6.sin6_scope_id);
  return {.name = absl::StrCat("ipv6:%5B", text, scope, "%5D:", ntohs(v6.sin6_port)),
          .address = std::string(reinterpret_cast<const char*>(&v6.sin6_addr), kNetworkBytes)};
}

int64_t ConnectionTable::Window::Unanswered(const CallCounts& counts, Time now, bool fresh) {
  // Starts a new window if the present one began too long ago, or if there is none for a connection that is not new.
  // Earlier calls are not counted. They are few: a connection that receives many bytes is examined in every round.
  const bool lost = !begin_ ? !fresh : now - *begin_ >= 2 * kCallWindow;
  if (lost) before_ = counts;
  const int64_t unanswered = (counts.begun - before_.begun) - (counts.done - before_.done);
  if (lost || !begin_) begin_ = now;
  if (now - *begin_ < kCallWindow) return unanswered;
  begin_ = now;
  before_ = counts;
  return unanswered;
}

bool ConnectionTable::IsOver(const Penalty& penalty, Time now) {
  constexpr int kTimes = 10;
  return now >= penalty.since + kTimes * penalty.pace;
}

std::optional<ConnectionTable::Id> ConnectionTable::Enter(const Peer& peer, Time now) {
  if (size() >= limits_.connections) return std::nullopt;
  if (!peer.address.empty()) {
    const auto found = addresses_.find(peer.address);
    if (found != addresses_.end() && found->second >= limits_.per_address) return std::nullopt;
    if (const auto penalty = penalties_.find(peer.address); penalty != penalties_.end()) {
      if (IsOver(penalty->second, now)) {
        penalties_.erase(penalty);
      } else if (now < penalty->second.next) {
        return std::nullopt;
      } else {
        penalty->second.next = now + penalty->second.pace;
      }
    }
  }
  ++addresses_[peer.address];
  connections_.emplace(next_, Connection{.address = peer.address, .since = now});
  return next_++;
}

void ConnectionTable::Leave(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (const auto address = addresses_.find(found->second.address); --address->second == 0) addresses_.erase(address);
  connections_.erase(found);
}

void ConnectionTable::SawCalls(Id id, const CallCounts& counts, Time now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const bool fresh = now - connection.since < kCallWindow;
  connection.seen = now;
  connection.unanswered = connection.window.Unanswered(counts, now, fresh) - 2 * limits_.calls_at_a_time;
}

std::vector<ConnectionTable::Id> ConnectionTable::TakeSuspects(Time now) {
  for (auto it = penalties_.begin(); it != penalties_.end();) {
    it = IsOver(it->second, now) ? penalties_.erase(it) : std::next(it);
  }
  std::vector<Id> suspects;
  int64_t sum = 0;
  for (const auto& [id, connection] : connections_) {
    if (connection.cut || connection.unanswered < kFewCalls || now - connection.seen >= kCallWindow) continue;
    suspects.push_back(id);
    sum += connection.unanswered;
  }
  if (sum <= kUnansweredCalls) return {};
  for (const Id id : suspects) {
    Connection& connection = connections_.at(id);
    connection.cut = true;
    const auto [penalty, is_new] = penalties_.try_emplace(connection.address, Penalty{.since = now, .pace = kPace});
    if (!is_new && connection.since > penalty->second.since) {
      penalty->second = {.since = now, .pace = std::min(2 * penalty->second.pace, kLongestPace)};
    }
    penalty->second.next = now + penalty->second.pace;
  }
  return suspects;
}

std::optional<CallCounts> CallCountReader::Of(const std::string& peer) {
  auto found = sockets_.find(peer);
  if (found == sockets_.end() && !listed_) FindSockets();
  if (found == sockets_.end()) found = sockets_.find(peer);
  if (found == sockets_.end()) return std::nullopt;
  Answer socket(grpc_channelz_get_socket(found->second));
  return CallCounts{.begun = socket.Number("\"streamsStarted\":\""), .done = socket.Number("\"streamsSucceeded\":\"")};
}

void CallCountReader::FindSockets() {
  constexpr char kServer[] = "\"serverId\":\"", kName[] = "\"name\":\"chttp2 ", kSocket[] = "\"socketId\":\"";
  listed_ = true;
  sockets_.clear();
  Answer servers(grpc_channelz_get_servers(0));  // One page: up to 100 servers, more than a process has.
  for (auto id = servers.Next(kServer); !id.empty(); id = servers.Next(kServer)) {
    // {"name":"chttp2 ipv4:127.0.0.1:1234","socketId":"7"}
    Answer sockets(grpc_channelz_get_server_sockets(ToNumber(id), /*start_socket_id=*/0, /*max_results=*/INT_MAX));
    for (auto name = sockets.Next(kName); !name.empty(); name = sockets.Next(kName)) {
      sockets_[std::string(name)] = ToNumber(sockets.Next(kSocket));
    }
  }
}

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
  RR_ASSIGN_OR_RETURN(auto socket, ListeningSocket::Open(address));
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, std::move(credentials));
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadBytes);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);
  listeners_.push_back({std::move(socket), std::move(acceptor)});
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
  // Accepts only a few connections at a time, so that a flood of them does not keep this thread from examining calls.
  constexpr int kAtATime = 16;
  for (int i = 0; i < kAtATime; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = accept4(listening_fd, reinterpret_cast<sockaddr*>(&address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) WaitForDescriptors();
      return;  // Other errors concern one connection only, or epoll reports them again.
    }
    const Peer peer = PeerOf(address);
    const auto id = table_.Enter(peer, Clock::now());
    if (!id) {
      Tell(ConnectionEvent::kRejected, "connection_rejected", peer.name);
      close(fd);
      continue;
    }
    // gRPC may close `fd` at any time, and its number may then belong to another connection. This duplicate stays open
    // until the connection is shut down in both directions, which gRPC does before it closes `fd`.
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
      close(fd);
      table_.Leave(*id);
      return WaitForDescriptors();
    }
    connections_.emplace(*id, Connection{.fd = own, .peer = peer.name});
    told_(ConnectionEvent::kOpened);
    Watch(own, EPOLLET, *id);  // epoll always reports errors and hang-ups.
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
  ThrowUnreadAway(found->second.fd);  // Nobody would read answers to these bytes.
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
  const char* why =
      event == ConnectionEvent::kRejected
          ? "closed at once: the limit max-connections or max-connections-per-address was reached, or the address "
            "was slowed down after an attack"
      : event == ConnectionEvent::kCut ? "connection cut: it began too many calls and cancelled or abandoned them"
                                       : "no file descriptor is free, so new connections wait; raise the limit "
                                         "(ulimit -n, LimitNOFILE)";
  LogEvent(LogLevel::kWarning, name, why, fields);
}

}  // namespace routing_replay::server
