// The standard hand-off: the bytes in the rollout workers, and the bytes that each trainer rank must receive.
//
// Qwen3-30B-A3B (48 MoE layers, 8 of 128), 32 samples of lognormal lengths, 4 workers, 8 ranks (tp 2, cp 2, pp 2,
// sequence parallel, zigzag per sample, micro-batches of at most 32768 padded tokens). Every figure of a hand-off
// refers to this scenario, and Python code that measures other systems generates the same bytes, so nothing here may
// change.
#ifndef TESTS_BENCH_HANDOFF_SCENARIO_H_
#define TESTS_BENCH_HANDOFF_SCENARIO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::bench {

inline constexpr int32_t kTp = 2, kCp = 2, kPp = 2;
inline constexpr int32_t kRanks = kTp * kCp * kPp;
inline constexpr int32_t kWorkers = 4;
inline constexpr int32_t kStandardSamples = 32;
inline constexpr int64_t kSamplePadMultiple = 8;

struct RankPlace {
  int32_t tp = 0, cp = 0, pp = 0;
};
// Ranks are numbered with tp innermost and pp outermost.
RankPlace PlaceOf(int32_t rank);

// One row of a sample.
struct RowSource {
  int32_t sample = 0;
  int64_t row = 0;
};

// Immutable.
class HandoffScenario {
 public:
  // Fewer than the standard number of samples only for a quick run, never for a comparison.
  explicit HandoffScenario(int32_t samples = kStandardSamples);

  const Geometry& geometry() const { return geometry_; }
  int32_t samples() const { return static_cast<int32_t>(tokens_.size()); }
  int64_t tokens(int32_t sample) const { return tokens_[sample]; }
  int64_t rows(int32_t sample) const { return tokens_[sample] - 1; }  // The last sampled token has no row.
  // Bytes of all samples' ids in the narrowest unpacked form, each of which must enter once and leave once.
  int64_t ids() const;
  // Sample i belongs to worker i mod kWorkers.
  std::vector<int32_t> SamplesOf(int32_t worker) const;
  // Half-open ranges of samples.
  const std::vector<RowRange>& micro_batches() const { return micro_batches_; }

  // [rows][layers][K], what the engine reported.
  std::vector<uint8_t> MakeSample(int32_t sample) const;

  // For each local row of the rank, in the order of micro-batches, the row that it shows; nullopt: filled with 0. It is
  // the reference of the benchmark, so it is deliberately simple.
  std::vector<std::optional<RowSource>> LocalRows(RankPlace place) const;
  // [layers of the stage][local rows][K] for `samples`, one element per sample.
  std::vector<uint8_t> ExpectedArray(RankPlace place, absl::Span<const std::vector<uint8_t>> samples) const;

 private:
  Geometry geometry_;
  std::vector<int64_t> tokens_;
  std::vector<RowRange> micro_batches_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_SCENARIO_H_
