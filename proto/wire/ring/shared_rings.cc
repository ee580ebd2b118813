#include "proto/wire/ring/shared_rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
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

// Indices of the two rings: the one that the process that made the memory writes, and the one that it reads.
constexpr size_t kFromMaker = 0, kToMaker = 1;
constexpr size_t kFirstRing = SharedRings::kBytes - 2 * SharedRings::kRingBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

RingState& StateOf(uint8_t* memory, size_t way) { return reinterpret_cast<RingState*>(memory)[way]; }

absl::Span<uint8_t> BytesOf(uint8_t* memory, size_t way) {
  return {memory + kFirstRing + way * SharedRings::kRingBytes, SharedRings::kRingBytes};
}

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

// With vm.overcommit_memory = 2, a page that the other end has released may be unavailable in the middle of a copy. The
// process would then be killed by SIGBUS.
bool IsEveryPageCounted() {
  int mode = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> mode;
  return mode == 2;
}

// MADV_DONTFORK: a forked child must not inherit the mapping, because each end of a ring has exactly one user.
absl::StatusOr<uint8_t*> MapMemory(int fd) {
  void* const memory = mmap(nullptr, SharedRings::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (memory == MAP_FAILED) return Failed("mmap");
  madvise(memory, SharedRings::kBytes, MADV_DONTFORK);
  return static_cast<uint8_t*>(memory);
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
  const auto room = Room();  // The next Write reports its error.
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
  const auto held = Held();  // The next Read reports its error.
  return (!held.ok() || *held <= bytes_.size() / 2) && state_.writer_waits.exchange(0) != 0;
}

absl::StatusOr<bool> RingReader::Wait() {
  state_.reader_waits.store(1);
  RR_ASSIGN_OR_RETURN(const size_t held, Held());
  if (held > 0) state_.reader_waits.store(0);
  return held == 0;
}

absl::StatusOr<SharedRings::Made> SharedRings::Make() {
  if (IsEveryPageCounted()) return absl::UnavailableError("shared memory is not used while vm.overcommit_memory is 2");
  const int fd = memfd_create("routing-replay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Failed("memfd_create");
  absl::Cleanup cleanup = [fd] { close(fd); };
  // Allocates all memory now, so that a shortage is reported here and does not kill the process in the middle of a
  // copy.
  if (fallocate(fd, 0, 0, kBytes) != 0) return Failed("fallocate");
  if (fcntl(fd, F_ADD_SEALS, kSeals) != 0) return Failed("F_ADD_SEALS");
  RR_ASSIGN_OR_RETURN(uint8_t* const memory, MapMemory(fd));
  std::move(cleanup).Cancel();
  return Made{std::unique_ptr<SharedRings>(new SharedRings(memory, true)), fd};
}

absl::StatusOr<std::unique_ptr<SharedRings>> SharedRings::Map(int fd) {
  struct stat is {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &is) != 0 || seals < 0 || (seals & kSeals) != kSeals || is.st_size != kBytes) {
    return absl::InvalidArgumentError("shared memory: the descriptor is not a sealed memory file of the expected size");
  }
  RR_ASSIGN_OR_RETURN(uint8_t* const memory, MapMemory(fd));
  return std::unique_ptr<SharedRings>(new SharedRings(memory, false));
}

SharedRings::SharedRings(uint8_t* memory, bool made)
    : memory_(memory),
      made_(made),
      process_(getpid()),
      writer_(StateOf(memory, made ? kFromMaker : kToMaker), BytesOf(memory, made ? kFromMaker : kToMaker)),
      reader_(StateOf(memory, made ? kToMaker : kFromMaker), BytesOf(memory, made ? kToMaker : kFromMaker)) {}

SharedRings::~SharedRings() {
  if (getpid() != process_) return;  // In a forked child, other memory may be mapped there.
  if (made_) madvise(memory_, kBytes, MADV_REMOVE);
  munmap(memory_, kBytes);
}

}  // namespace wire
}  // namespace routing_replay
