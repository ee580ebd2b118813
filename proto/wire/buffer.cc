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
constexpr size_t kMostKept = 0;  // Otherwise a use after the end of a buffer would go unnoticed.
#else
constexpr size_t kMostKept = size_t{16} << 20;
#endif

// Memory of buffers that are gone, for the next ones. Nobody waits for the lock: a thread that does not get it, or the
// child of a fork while another thread held it, uses malloc and free.
class Kept {
 public:
  static Kept& Shared() {
    static Kept* const kept = new Kept;
    return *kept;
  }

  // Memory of at least this size, but at most a 32nd larger, so that a store does not grow by more; or null.
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

  // Frees the oldest blocks to make room. Returns false if it keeps nothing.
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
