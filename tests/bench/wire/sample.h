// One sample of routes like a real model's, in every form that a codec reads or writes, each made by simple code.
#ifndef TESTS_BENCH_WIRE_SAMPLE_H_
#define TESTS_BENCH_WIRE_SAMPLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/geometry.h"
#include "tests/generator/latent_generator.h"

namespace routing_replay::bench {

// Consecutive blocks in one buffer.
struct EncodedSample {
  Codec codec = Codec::kRaw;
  Buffer bytes;
  std::vector<BlockView> blocks;  // Views of `bytes`.
  std::vector<std::vector<uint32_t>> crcs;
};

// Rows [1, end) of every plane of every PACKED block, concatenated.
struct CutSample {
  Buffer bytes;
  Buffer ids;  // The decoded cuts, [rows][K] of each, concatenated.
};

// Immutable. Every layer has the same E and K.
class WireSample {
 public:
  WireSample(const std::string& model, const testing::LatentConfig& config, int64_t rows);
  WireSample(const WireSample&) = delete;

  const std::string& model() const { return model_; }
  const Geometry& geometry() const { return geometry_; }
  int64_t rows() const { return rows_; }
  const LayerRouting& layer() const { return geometry_.layer(0); }
  int64_t ids() const { return rows_ * geometry_.ids_per_row(); }

  // The ids as an engine holds them, [rows][layers][K]: int16, int32, int64, and the narrowest type of whole bytes.
  absl::Span<const uint8_t> i16() const { return i16_.span(); }
  absl::Span<const uint8_t> i32() const { return i32_.span(); }
  absl::Span<const uint8_t> i64() const { return i64_.span(); }
  absl::Span<const uint8_t> narrow() const { return narrow_.span(); }
  // All rows of each layer, [layers][rows][K], as a trainer injects them.
  absl::Span<const uint8_t> layers() const { return layers_.span(); }
  const EncodedSample& raw() const { return raw_; }
  const EncodedSample& packed() const { return packed_; }
  const CutSample& cuts() const { return cuts_; }

 private:
  uint16_t IdAt(int64_t row, int32_t layer, int32_t slot) const {
    return ids_[(row * geometry_.num_moe_layers() + layer) * geometry_.layer(0).top_k + slot];
  }
  void MakeRows();
  EncodedSample Encode(Codec codec) const;
  void MakeCuts();

  const std::string model_;
  const Geometry geometry_;
  const int64_t rows_;
  std::vector<uint16_t> ids_;
  Buffer i16_, i32_, i64_, narrow_, layers_;
  EncodedSample raw_, packed_;
  CutSample cuts_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_SAMPLE_H_
