// The index buffers of a rank in one allocation: how many of which size, and at what cost.
//
// Virtual stages of a rank differ in layers, K and width of ids, and a schedule holds several micro-batches of each at
// one time. Buffers of one size can share a bucket; those of several sizes can too, each as large as the largest, or
// have buckets of their own, each with an aligned base. Which is better depends on the numbers (Megatron-LM pull
// request 4979 shows padding of 0 to 700 % for either choice), so the bytes are computed and the fewest are taken.
#ifndef ROUTING_REPLAY_TRAINER_BUFFER_POOL_H_
#define ROUTING_REPLAY_TRAINER_BUFFER_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/buffer_layout.h"

namespace routing_replay::trainer {

inline constexpr int64_t kMaxPoolBytes = int64_t{1} << 48;

// Buffers of one layout, those of a virtual stage: layers x K x width of ids, for the rows of the largest micro-batch.
struct BufferNeed {
  const BufferLayout& layout;
  int64_t buffers = 0;  // In use at one time, as PeakInFlight says.
};

struct PoolBytes {
  int64_t wanted = 0;  // Of all slabs.
  int64_t taken = 0;   // A multiple of kBufferAlignment.
  // 0.01: one byte in a hundred more than wanted. 0 where nothing is wanted.
  double waste() const;
  friend bool operator==(const PoolBytes&, const PoolBytes&) = default;
};

// Buffers at equal distances. Only the base is aligned; ids lie on multiples of their width all the same.
struct BufferBucket {
  std::vector<int32_t> needs;  // Whose buffers these are, one need after the other.
  int64_t buffers = 0;         // Of all needs.
  int32_t id_bytes = 1;        // Of the widest ids.
  int64_t stride = 0;          // Bytes from one buffer to the next.
  int64_t offset = 0;          // Of the first one in the pool, a multiple of kBufferAlignment.
  PoolBytes bytes;
  friend bool operator==(const BufferBucket&, const BufferBucket&) = default;
};

// Immutable, thread-safe. Addresses depend on the needs alone, so they may be captured in a CUDA graph.
class BufferPool {
 public:
  // Needs next to each other in size are merged or not so that the fewest bytes are taken, in the fewest buckets among
  // equals.
  // INVALID_ARGUMENT (kField) for fewer than 0 buffers and for more than kMaxPoolBytes.
  static absl::StatusOr<BufferPool> Create(absl::Span<const BufferNeed> needs);

  const std::vector<BufferBucket>& buckets() const { return buckets_; }
  const PoolBytes& bytes() const { return bytes_; }
  // Where buffer `index` of a need starts in the pool. Requires index in [0, buffers of the need).
  int64_t offset(int32_t need, int64_t index) const { return places_[need].first + index * places_[need].stride; }

  // One line per bucket, for logs: "5 buffers of 2 layers x K 8 x 1 byte x 4096 rows: 327680 bytes wanted, 327680 taken
  // (+0.00 %)".
  std::string DebugString() const;

 private:
  struct Place {
    int64_t first = 0;
    int64_t stride = 0;
  };

  BufferPool() = default;

  std::vector<BufferBucket> buckets_;
  std::vector<Place> places_;        // Of each need.
  std::vector<std::string> shapes_;  // Of each need, for people.
  PoolBytes bytes_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_BUFFER_POOL_H_
