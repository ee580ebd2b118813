#include "tests/bench/serve/transfer.h"

#include <algorithm>

#include "routing_replay/wire/checksum.h"
#include "tests/generator/prng.h"

namespace routing_replay::bench {
namespace {

constexpr int32_t kLayers = 48, kExperts = 128, kTopK = 8;
// The number of windows to transfer: 124 MB, or 21 MB in a quick run. Both numbers are multiples of the windows per
// message of each message size.
constexpr int64_t kWindows = 1260, kQuickWindows = 210;

}  // namespace

Transfer::Transfer(bool quick) : windows_(quick ? kQuickWindows : kWindows) {}

const Geometry& Transfer::geometry() {
  static const Geometry geometry = Geometry::Uniform(kLayers, kExperts, kTopK);
  return geometry;
}

int64_t Transfer::WindowBytes() { return geometry().block_bytes(kDefaultBlockRows, Codec::kRaw); }

std::vector<MessageSize> Transfer::Sizes() {
  std::vector<MessageSize> sizes{{"1MiB", int64_t{1} << 20}, {"4MiB", int64_t{4} << 20}};
  for (MessageSize& size : sizes) size.windows = size.bytes / WindowBytes();
  return sizes;
}

TransferData::TransferData(const Transfer& transfer) : rows_(transfer.bytes()), blocks_(transfer.bytes()) {
  testing::Prng random(1);
  uint8_t* row = rows_.data();
  for (int64_t window = 0; window < transfer.windows(); ++window) {
    uint8_t* block = blocks_.data() + window * Transfer::WindowBytes();
    for (int64_t r = 0; r < kDefaultBlockRows; ++r) {
      for (int32_t layer = 0; layer < kLayers; ++layer, row += kTopK) {
        const uint64_t first = random(), step = random() | 1;  // With an odd step all ids of a row differ.
        for (int32_t k = 0; k < kTopK; ++k) row[k] = static_cast<uint8_t>((first + k * step) % kExperts);
        std::copy_n(row, kTopK, block + (layer * int64_t{kDefaultBlockRows} + r) * kTopK);
      }
    }
    std::vector<uint32_t>& crcs = crcs_.emplace_back();
    constexpr int64_t kPlane = int64_t{kDefaultBlockRows} * kTopK;
    for (int32_t layer = 0; layer < kLayers; ++layer) crcs.push_back(Crc32c({block + layer * kPlane, kPlane}));
  }
}

}  // namespace routing_replay::bench
