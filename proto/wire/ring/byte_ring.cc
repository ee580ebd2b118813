#include "proto/wire/ring/byte_ring.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// A long copy publishes its position after this many bytes, so that the other end can work at the same time on another
// core.
constexpr size_t kTurn = 64 << 10;

// All accesses to positions and to `waits` are sequentially consistent. An end that is about to wait first sets its
// `waits` flag, then reads the other's position again. The other end first moves its position, then reads the flag. So
// at least one of them notices the other, and no wake-up is lost.

// Number of bytes in the ring. INVALID_ARGUMENT if the two positions contradict each other.
absl::StatusOr<size_t> Ahead(uint64_t written, uint64_t read, size_t capacity) {
  if (written - read <= capacity) return static_cast<size_t>(written - read);
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("shared memory: invalid positions: ", written, " bytes written, ", read,
                                " read, ring of ", capacity),
                   {.reason = Reason::kEncoding});
}

// Calls copy(offset in the ring, memory, bytes) for at most the first `most` bytes of `pieces`. Returns the number of
// bytes.
template <typename Copy>
size_t CopyPieces(absl::Span<const iovec> pieces, uint64_t position, size_t capacity, size_t most, Copy&& copy) {
  size_t done = 0;
  for (const iovec& piece : pieces) {
    for (size_t of_piece = 0; of_piece < piece.iov_len;) {
      if (done == most) return done;
      const size_t at = (position + done) % capacity;
      const size_t bytes = std::min({piece.iov_len - of_piece, most - done, capacity - at});
      copy(at, static_cast<uint8_t*>(piece.iov_base) + of_piece, bytes);
      of_piece += bytes;
      done += bytes;
    }
  }
  return done;
}

}  // namespace

absl::StatusOr<size_t> RingWriter::Room() const {
  RR_ASSIGN_OR_RETURN(const size_t held, Ahead(written_, state_.read.load(), bytes_.size()));
  return bytes_.size() - held;
}

absl::StatusOr<size_t> RingWriter::Write(absl::Span<const iovec> pieces) {
  RR_ASSIGN_OR_RETURN(const size_t room, Room());
  const size_t bytes = CopyPieces(pieces, written_, bytes_.size(), std::min(room, kTurn),
                                  [&](size_t at, const uint8_t* from, size_t n) { std::memcpy(&bytes_[at], from, n); });
  if (bytes > 0) state_.written.store(written_ += bytes);
  return bytes;
}

bool RingWriter::MustWake(bool last) {
  if (state_.reader_waits.load() == 0) return false;
  const auto room = Room();  // The next Write reports an error.
  return (last || !room.ok() || *room <= bytes_.size() / 2) && state_.reader_waits.exchange(0) != 0;
}

absl::StatusOr<bool> RingWriter::Wait() {
  state_.writer_waits.store(1);
  RR_ASSIGN_OR_RETURN(const size_t room, Room());
  if (room > 0) state_.writer_waits.store(0);
  return room == 0;
}

absl::StatusOr<size_t> RingReader::Held() const { return Ahead(state_.written.load(), read_, bytes_.size()); }

absl::StatusOr<size_t> RingReader::Read(absl::Span<const iovec> space) {
  RR_ASSIGN_OR_RETURN(const size_t held, Held());
  const size_t bytes = CopyPieces(space, read_, bytes_.size(), std::min(held, kTurn),
                                  [&](size_t at, uint8_t* to, size_t n) { std::memcpy(to, &bytes_[at], n); });
  if (bytes == 0) return 0;
  state_.read.store(read_ += bytes);
  // If the writer released the shared memory during the copy, the copied bytes may be zeros. Its position then reads as
  // 0 too, which Held rejects.
  RR_RETURN_IF_ERROR(Held().status());
  return bytes;
}

bool RingReader::MustWake() {
  if (state_.writer_waits.load() == 0) return false;
  const auto held = Held();  // The next Read reports an error.
  return (!held.ok() || *held <= bytes_.size() / 2) && state_.writer_waits.exchange(0) != 0;
}

absl::StatusOr<bool> RingReader::Wait() {
  state_.reader_waits.store(1);
  RR_ASSIGN_OR_RETURN(const size_t held, Held());
  if (held > 0) state_.reader_waits.store(0);
  return held == 0;
}

}  // namespace wire
}  // namespace routing_replay
