#include "proto/wire/ring/shared_rings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"

namespace routing_replay {
inline namespace wire {
namespace {

// Index of the ring that the maker of the memory writes, and of the one that it reads.
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
