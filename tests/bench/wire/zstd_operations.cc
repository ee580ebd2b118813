#include <zstd.h>

#include "proto/wire/payload/tensor_view.h"
#include "tests/bench/wire/operation_support.h"

namespace routing_replay::bench {
namespace {

constexpr int kLevel = 1;

size_t Compress(const WireSample& sample, Buffer& out) {
  const absl::Span<const uint8_t> raw = sample.raw().bytes.span();
  return ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), kLevel);
}

Buffer FrameOf(const WireSample& sample) {
  Buffer room(ZSTD_compressBound(sample.raw().bytes.size()));
  Buffer frame(Compress(sample, room));
  std::memcpy(frame.data(), room.data(), frame.size());
  return frame;
}

// The output is right if it decompresses to the input.
Operation CompressBlocks(const WireSample& sample) {
  const absl::Span<const uint8_t> raw = sample.raw().bytes.span();
  const auto room = std::make_shared<Buffer>(ZSTD_compressBound(raw.size()));
  const auto size = std::make_shared<size_t>(0);
  return MakeOperation(
      sample, "zstd-compress", raw, raw, [&sample, room, size](uint8_t*) { *size = Compress(sample, *room); },
      [room, size, bytes = raw.size()](uint8_t* out) { ZSTD_decompress(out, bytes, room->data(), *size); });
}

// The floor is a memcpy of the output.
Operation Decompress(const WireSample& sample) {
  const absl::Span<const uint8_t> raw = sample.raw().bytes.span();
  const auto frame = std::make_shared<const Buffer>(FrameOf(sample));
  const auto result = std::make_shared<Buffer>();
  const auto bytes = static_cast<int64_t>(raw.size());
  return MakeOperation(
      sample, "zstd-decompress", raw, raw,
      [frame, result, bytes](uint8_t*) {
        auto decompressed = DecompressZstd(frame->span(), bytes, bytes);
        *result = decompressed.ok() ? *std::move(decompressed) : Buffer();
      },
      [result](uint8_t* out) { std::memcpy(out, result->data(), result->size()); });
}

}  // namespace

double ZstdRatio(const WireSample& sample) {
  return static_cast<double>(sample.raw().bytes.size()) / static_cast<double>(FrameOf(sample).size());
}

std::vector<Operation> ZstdOperations(const WireSample& sample) { return {CompressBlocks(sample), Decompress(sample)}; }

}  // namespace routing_replay::bench
