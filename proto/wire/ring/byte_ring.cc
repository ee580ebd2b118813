#include "proto/wire/ring/byte_ring.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Positions are published so often within a long copy: meanwhile the other end works on another core.
constexpr size_t kTurn = 64 << 10;

// All accesses to positions and to `waits` are sequentially consistent. An end that says that it waits looks at the
// position once more, and the other one looks at `waits` once it has moved that: one of them sees the other.

// How far the writer is ahead.
absl::StatusOr<size_t> Ahead(uint64_t written, uint64_t read, size_t capacity) {
  if (written - read <= capacity) return static_cast<size_t>(written - read);
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("shared memory: ", written, " bytes written and ", read, " read, in a ring of ", capacity),
      {.reason = Reason::kEncoding});
}

// Calls copy(offset in the ring, memory, bytes) for the first `most` bytes of `pieces`, or all. Returns how many.
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
  const auto room = Room();  // What is wrong with it says the next Write.
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
  // Who takes its memory away leaves zeros, and a position of 0 with them.
  RR_RETURN_IF_ERROR(Held().status());
  return bytes;
}

bool RingReader::MustWake() {
  if (state_.writer_waits.load() == 0) return false;
  const auto held = Held();  // As there.
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
