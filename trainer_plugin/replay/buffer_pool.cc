#include "routing_replay/trainer/buffer_pool.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"

namespace routing_replay::trainer {
namespace {

// Width of the widest id.
int32_t IdBytes(const BufferLayout& layout) {
  int32_t bytes = 1;
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) bytes = std::max(bytes, layout.layer(slot).id_bytes());
  return bytes;
}

absl::Status CheckNeeds(absl::Span<const BufferNeed> needs) {
  const auto refuse = [](absl::string_view what) {
    return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("pool.needs: ", what),
                     {.reason = Reason::kField, .field = "pool.needs"});
  };
  int64_t buffers = 0, largest = 0;
  for (const BufferNeed& need : needs) {
    if (need.buffers < 0) return refuse(absl::StrCat(need.buffers, " buffers are fewer than none"));
    if (need.buffers > kMaxPoolBytes || (buffers += need.buffers) > kMaxPoolBytes) return refuse("too many buffers");
    largest = std::max(largest, need.layout.bytes());
  }
  // However needs are merged, each buffer is at most as large as the largest.
  if (largest > 0 && buffers > kMaxPoolBytes / (largest + kBufferAlignment)) {
    return refuse(absl::StrCat(buffers, " buffers of up to ", largest, " bytes are more than ", kMaxPoolBytes));
  }
  return absl::OkStatus();
}

// Adds the buffers of a need to a bucket that is not placed yet.
void Add(BufferBucket& bucket, int32_t index, const BufferNeed& need) {
  bucket.needs.push_back(index);
  bucket.buffers += need.buffers;
  bucket.id_bytes = std::max(bucket.id_bytes, IdBytes(need.layout));
  bucket.stride = RoundUp(std::max(bucket.stride, need.layout.bytes()), bucket.id_bytes);
  bucket.bytes.wanted += need.buffers * need.layout.bytes();
  bucket.bytes.taken = RoundUp(bucket.buffers * bucket.stride, kBufferAlignment);
}

// The best way to cut the needs, by size, into consecutive groups. Other groups can save no more than the alignment of
// buckets, as all needs on their own waste no more.
std::vector<BufferBucket> ChooseBuckets(absl::Span<const BufferNeed> needs) {
  std::vector<int32_t> order(needs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return needs[a].layout.bytes() < needs[b].layout.bytes(); });
  struct Best {
    int64_t taken = 0;
    int64_t buckets = 0;
    size_t begin = 0;  // Of the last bucket.
  };
  std::vector<Best> best(order.size() + 1);  // For the first n needs.
  for (size_t n = 1; n <= order.size(); ++n) {
    BufferBucket last;
    for (size_t begin = n; begin-- > 0;) {
      Add(last, order[begin], needs[order[begin]]);
      const Best with{best[begin].taken + last.bytes.taken, best[begin].buckets + 1, begin};
      if (begin + 1 == n || std::tie(with.taken, with.buckets) < std::tie(best[n].taken, best[n].buckets))
        best[n] = with;
    }
  }
  std::vector<BufferBucket> buckets;
  for (size_t n = order.size(); n > 0; n = best[n].begin) {
    BufferBucket& bucket = buckets.emplace_back();
    for (size_t i = best[n].begin; i < n; ++i) Add(bucket, order[i], needs[order[i]]);
  }
  return buckets;
}

// "2 layers x K 8 x 1 byte + 1 layer x K 6 x 2 bytes x 4096 rows"
std::string ShapeOf(const BufferLayout& layout) {
  std::map<std::pair<int32_t, int32_t>, int32_t> layers;  // By K and width.
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
    ++layers[{layout.layer(slot).top_k, layout.layer(slot).id_bytes()}];
  }
  std::vector<std::string> parts;
  parts.reserve(layers.size());
  for (const auto& [key, count] : layers) {
    parts.push_back(absl::StrCat(count, count == 1 ? " layer" : " layers", " x K ", key.first, " x ", key.second,
                                 key.second == 1 ? " byte" : " bytes"));
  }
  return absl::StrCat(parts.empty() ? "0 layers" : absl::StrJoin(parts, " + "), " x ", layout.rows(), " rows");
}

}  // namespace

double PoolBytes::waste() const {
  return wanted == 0 ? 0.0 : static_cast<double>(taken - wanted) / static_cast<double>(wanted);
}

absl::StatusOr<BufferPool> BufferPool::Create(absl::Span<const BufferNeed> needs) {
  if (auto s = CheckNeeds(needs); !s.ok()) return s;
  BufferPool pool;
  pool.buckets_ = ChooseBuckets(needs);
  pool.places_.resize(needs.size());
  for (BufferBucket& bucket : pool.buckets_) {
    bucket.offset = pool.bytes_.taken;
    int64_t next = bucket.offset;
    for (int32_t need : bucket.needs) {
      pool.places_[need] = {next, bucket.stride};
      next += needs[need].buffers * bucket.stride;
    }
    pool.bytes_.wanted += bucket.bytes.wanted;
    pool.bytes_.taken += bucket.bytes.taken;
  }
  for (const BufferNeed& need : needs) {
    pool.shapes_.push_back(
        absl::StrCat(need.buffers, need.buffers == 1 ? " buffer" : " buffers", " of ", ShapeOf(need.layout)));
  }
  return pool;
}

std::string BufferPool::DebugString() const {
  std::vector<std::string> lines;
  for (const BufferBucket& bucket : buckets_) {
    std::vector<std::string> shapes;
    for (int32_t need : bucket.needs) shapes.push_back(shapes_[need]);
    lines.push_back(absl::StrFormat("%s: %d bytes wanted, %d taken (+%.2f %%)", absl::StrJoin(shapes, ", "),
                                    bucket.bytes.wanted, bucket.bytes.taken, 100 * bucket.bytes.waste()));
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace routing_replay::trainer
