#include "client/channel/direct_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/ring/ring_stream.h"
#include "proto/wire/status_macros.h"
#include "proto/wire/tls/tls_stream.h"

namespace routing_replay::client {
namespace {

// Most messages of an answer have 4 MiB at most, but the record of a single sample may be larger.
constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;

absl::Status Unavailable(absl::string_view what) { return absl::UnavailableError(absl::StrCat("direct path: ", what)); }

absl::Status AdmitAnswer(const Frame& frame) {
  if (frame.type == FrameType::kCall || frame.header_bytes > kMaxMessageBytes ||
      frame.payload_bytes > kMaxMessageBytes) {
    return absl::InternalError("not a frame of an answer");
  }
  return absl::OkStatus();
}

// Connects the non-blocking socket `fd`, and makes it blocking. Returns false, with errno set, if that fails or is not
// done by the deadline.
bool ConnectBy(int fd, const sockaddr* address, socklen_t size, Clock::Time deadline) {
  if (connect(fd, address, size) != 0) {
    if (errno != EINPROGRESS) return false;
    int error = 0;
    socklen_t error_size = sizeof(error);
    const bool in_time = PollBy(fd, POLLOUT, deadline) != 0;
    if (!in_time) errno = ETIMEDOUT;
    if (!in_time || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0) return false;
    errno = error;
    if (error != 0) return false;
  }
  return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0;
}

absl::StatusOr<int> Connected(int family, const sockaddr* address, socklen_t size, Clock::Time deadline) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && ConnectBy(fd, address, size, deadline)) return fd;
  const absl::Status status = Unavailable(std::strerror(errno));
  if (fd >= 0) close(fd);
  return status;
}

absl::StatusOr<int> DialUnix(const std::string& name, Clock::Time deadline) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (name.size() + 1 > sizeof(address.sun_path)) return Unavailable("the socket's name is too long");
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // An abstract name starts with a zero byte.
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  auto fd = Connected(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), size, deadline);
  if (fd.ok()) PrepareUnix(*fd);
  return fd;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Converts an IP address in text form, without a DNS lookup. Returns null if `host` is not an IP address.
Addresses Parse(const std::string& host, int port) {
  const addrinfo hints{.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &list) != 0) list = nullptr;
  return Addresses(list, freeaddrinfo);
}

absl::StatusOr<int> DialTcp(const std::string& host, int port, Clock::Time deadline) {
  const Addresses to = Parse(host, port);
  if (to == nullptr) return Unavailable(absl::StrCat(host, " is not an IP address"));
  auto fd = Connected(to->ai_family, to->ai_addr, to->ai_addrlen, deadline);
  if (fd.ok()) PrepareTcp(*fd);
  return fd;
}

}  // namespace

bool IsOfThisMachine(const std::string& host) {
  const Addresses own = Parse(host, 0);
  if (own == nullptr) return false;
  const int fd = socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is = fd >= 0 && bind(fd, own->ai_addr, own->ai_addrlen) == 0;
  if (fd >= 0) close(fd);
  return is;
}

absl::StatusOr<DirectTls::Ends> DirectTls::Look() {
  RR_ASSIGN_OR_RETURN(auto keys, security_->KeysFor(judged_));
  MutexLock lock(mutex_);
  if (context_ == nullptr || keys != keys_) {
    RR_ASSIGN_OR_RETURN(context_, ClientTlsContext(keys.certificate, keys.key, keys.root_certificates));
    keys_ = std::move(keys);
  }
  return Ends{context_, keys_.server_name.empty() ? host_ : keys_.server_name};
}

absl::StatusOr<std::unique_ptr<DirectConnection>> DirectConnection::Dial(const DirectAddress& address, DirectTls* tls,
                                                                         Clock::Time deadline) {
  DirectTls::Ends ends;
  if (tls != nullptr) {
    RR_ASSIGN_OR_RETURN(ends, tls->Look());
  }
  RR_ASSIGN_OR_RETURN(const int fd, address.unix_socket.empty() ? DialTcp(address.host, address.port, deadline)
                                                                : DialUnix(address.unix_socket, deadline));
  std::unique_ptr<ByteStream> stream;
  if (tls != nullptr) {
    stream = TlsStream::Connect(ends.own, fd, ends.server_name);
  } else {
    stream = std::make_unique<SocketStream>(fd);
  }
  return std::unique_ptr<DirectConnection>(new DirectConnection(std::move(stream), address));
}

DirectConnection::DirectConnection(std::unique_ptr<ByteStream> stream, DirectAddress address)
    : stream_(std::move(stream)), address_(std::move(address)), reader_(AdmitAnswer) {}

bool DirectConnection::IsFresh() {
  if (!reader_.at_start() || sending()) return false;
  const auto bytes = stream_->Read(reader_.Space());
  return bytes.ok() && *bytes == 0;
}

const char* DirectConnection::transport() const {
  return in_memory_ ? "shm" : address_.unix_socket.empty() ? "direct" : "unix";
}

absl::Status DirectConnection::TakeMemory(Clock::Time deadline) {
  stream_->Wait(POLLIN, deadline);
  RR_ASSIGN_OR_RETURN(const int memory, ReceiveMemory(fd()));
  if (memory < 0) return absl::OkStatus();
  auto rings = SharedRings::Map(memory);
  close(memory);
  if (!rings.ok()) return Unavailable(rings.status().message());
  stream_ = std::make_unique<RingStream>(std::move(stream_), *std::move(rings));
  in_memory_ = true;
  return absl::OkStatus();
}

absl::Status DirectConnection::Broken(absl::string_view what, const absl::Status& why) {
  Break();
  return Unavailable(absl::StrCat(what, why.message()));
}

absl::Status DirectConnection::TrySend() {
  const absl::Status status = writer_.SendTo(*stream_);
  return status.ok() ? status : Broken("send: ", status);
}

absl::Status DirectConnection::Send(Clock::Time deadline) {
  while (true) {
    RR_RETURN_IF_ERROR(TrySend());
    if (!sending()) return absl::OkStatus();
    if (MsUntil(deadline) == 0) return Broken("send: ", absl::DeadlineExceededError("not done in time"));
    stream_->Wait(stream_->write_events(), deadline);
  }
}

absl::StatusOr<bool> DirectConnection::OnBytes(const absl::StatusOr<size_t>& bytes) {
  if (!bytes.ok()) return Broken("receive: ", bytes.status());
  const absl::Status status = *bytes == 0 ? absl::OkStatus() : reader_.Advance(*bytes);
  if (!status.ok()) return Broken("", status);
  return reader_.done();
}

absl::StatusOr<std::optional<ReceivedFrame>> DirectConnection::TryReceive() {
  while (true) {
    const auto bytes = stream_->Read(reader_.Space());
    RR_ASSIGN_OR_RETURN(const bool done, OnBytes(bytes));
    if (done) return std::optional<ReceivedFrame>(reader_.Take());
    if (*bytes == 0) return std::optional<ReceivedFrame>();
  }
}

absl::StatusOr<std::optional<ReceivedFrame>> DirectConnection::Receive(Clock::Time deadline) {
  while (MsUntil(deadline) > 0) {
    RR_ASSIGN_OR_RETURN(const bool done, OnBytes(stream_->ReadBy(reader_.Space(), deadline)));
    if (done) return std::optional<ReceivedFrame>(reader_.Take());
  }
  return std::optional<ReceivedFrame>();
}

}  // namespace routing_replay::client
