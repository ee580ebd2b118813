#include "proto/wire/buffer.h"

#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iterator>

#include "absl/base/thread_annotations.h"
#include "proto/wire/mutex.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr size_t kSmallest = size_t{32} << 10, kLargest = size_t{2} << 20;

#ifdef __SANITIZE_ADDRESS__
constexpr size_t kMostKept = 0;  // AddressSanitizer would not notice the use of freed memory that is kept.
#else
constexpr size_t kMostKept = size_t{16} << 20;
#endif

// Keeps the memory of freed buffers for the next ones. Nobody waits for the lock: a thread that does not get it at once
// uses malloc and free. So does the child of a fork that happened while another thread held the lock.
class Kept {
 public:
  static Kept& Shared() {
    static Kept* const kept = new Kept;
    return *kept;
  }

  // Returns kept memory that has at least `size` bytes and at most 1/32 more, or null. Larger memory is not used,
  // because a store that holds many buffers would grow by the difference.
  void* Take(size_t size) {
    if (!mutex_.TryLock()) return nullptr;
    void* memory = nullptr;
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(), [size](const Block& block) {
      return block.size >= size && block.size <= size + size / 32;
    });
    if (found != blocks_.rend()) {
      memory = found->memory;
      bytes_ -= found->size;
      blocks_.erase(std::next(found).base());
    }
    mutex_.Unlock();
    return memory;
  }

  // Keeps `memory` for a later Take, and frees the oldest blocks so that at most kMostKept bytes are kept. Returns
  // false if it does not keep `memory`; the caller then frees it.
  bool Give(void* memory, size_t size) {
    if (size > kMostKept || !mutex_.TryLock()) return false;
    while (bytes_ + size > kMostKept) {
      std::free(blocks_.front().memory);
      bytes_ -= blocks_.front().size;
      blocks_.pop_front();
    }
    blocks_.push_back({memory, size});
    bytes_ += size;
    mutex_.Unlock();
    return true;
  }

 private:
  struct Block {
    void* memory;
    size_t size;
  };

  Mutex mutex_;
  std::deque<Block> blocks_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

bool Keeps(size_t size) { return size >= kSmallest && size <= kLargest; }

}  // namespace

void* Buffer::Allocate(size_t size) {
  void* const kept = Keeps(size) ? Kept::Shared().Take(size) : nullptr;
  return kept != nullptr ? kept : std::malloc(size);
}

void Buffer::Free(void* memory, size_t size) {
  if (!Keeps(size) || !Kept::Shared().Give(memory, malloc_usable_size(memory))) std::free(memory);
}

}  // namespace wire
}  // namespace routing_replay
