#include "proto/wire/ring/ring_stream.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr auto kMemory = static_cast<char>(0xD2), kNoMemory = static_cast<char>(0xD3);

bool IsAll(absl::Span<const iovec> pieces, size_t bytes) {
  for (const iovec& piece : pieces) {
    if (piece.iov_len > bytes) return false;
    bytes -= piece.iov_len;
  }
  return true;
}

// A one-byte message with room for an attached descriptor.
struct Parcel {
  Parcel() {
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }

  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

}  // namespace

absl::StatusOr<size_t> RingStream::Read(absl::Span<const iovec> space) {
  while (true) {
    auto bytes = rings_->reader().Read(space);
    if (bytes.ok() && *bytes > 0 && rings_->reader().MustWake()) Wake();
    if (!bytes.ok() || *bytes > 0) return bytes;
    TakeWakes();  // Must precede Wait: if the peer is gone, Wait then sees all bytes that it wrote.
    RR_ASSIGN_OR_RETURN(const bool nothing, rings_->reader().Wait());
    if (nothing && gone_) return absl::UnavailableError("the peer closed the connection");
    if (nothing) return 0;
  }
}

// Callers repeat Write until everything is written or it returns 0.
absl::StatusOr<size_t> RingStream::Write(absl::Span<const iovec> bytes) {
  while (true) {
    auto written = rings_->writer().Write(bytes);
    if (written.ok() && *written > 0 && rings_->writer().MustWake(/*last=*/IsAll(bytes, *written))) Wake();
    if (!written.ok() || *written > 0) return written;
    TakeWakes();
    if (gone_) return absl::UnavailableError("the peer closed the connection");
    RR_ASSIGN_OR_RETURN(const bool no_room, rings_->writer().Wait());
    if (no_room) return 0;
  }
}

// If the socket is full, enough wake-up bytes are already waiting there, so a failed send does no harm.
void RingStream::Wake() const {
  const char wake = 0;
  send(fd(), &wake, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void RingStream::TakeWakes() {
  std::array<char, 64> wakes;
  const ssize_t bytes = recv(fd(), wakes.data(), wakes.size(), MSG_DONTWAIT);
  if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) gone_ = true;
}

bool SendMemory(int socket, int memory) {
  Parcel parcel;
  if (memory < 0) {
    parcel.message.msg_controllen = 0;
  } else {
    cmsghdr* const part = CMSG_FIRSTHDR(&parcel.message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(memory));
    std::memcpy(CMSG_DATA(part), &memory, sizeof(memory));
  }
  parcel.byte = memory < 0 ? kNoMemory : kMemory;
  return sendmsg(socket, &parcel.message, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

absl::StatusOr<int> ReceiveMemory(int socket) {
  Parcel parcel;
  const ssize_t bytes = recvmsg(socket, &parcel.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes != 1) return absl::UnavailableError("shared memory: the server did not answer");
  int memory = -1;
  const cmsghdr* const part = CMSG_FIRSTHDR(&parcel.message);
  if (part != nullptr && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
      part->cmsg_len == CMSG_LEN(sizeof(memory))) {
    std::memcpy(&memory, CMSG_DATA(part), sizeof(memory));
  }
  if (parcel.byte == kMemory && memory >= 0) return memory;
  if (memory >= 0) close(memory);
  if (parcel.byte == kNoMemory) return -1;
  return absl::UnavailableError(parcel.byte == kMemory ? "shared memory: the server's answer has no descriptor"
                                                       : "shared memory: another program answered");
}

}  // namespace wire
}  // namespace routing_replay
