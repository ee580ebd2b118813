// Bytes that all ranks of known layouts plan to read, compared with the bytes that they need: the README's table.
#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "routing_replay/trainer/plan.h"
#include "tests/support/dense_prefix.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::WithDensePrefix;

struct Trainer {
  const char* model;
  Geometry geometry;
  LayerSplit split;
  int32_t tp = 1, cp = 1;
};

std::vector<Trainer> Trainers() {
  const Geometry qwen30 = Geometry::Uniform(48, 128, 8), qwen235 = Geometry::Uniform(94, 128, 8);
  const LayerSplit split235{
      .num_layers = 94, .pipeline_size = 4, .account_for_embedding = true, .account_for_loss = true};
  return {{"Qwen3-30B-A3B", qwen30, {.num_layers = 48, .pipeline_size = 2}, 4, 2},
          {"Qwen3-235B-A22B", qwen235, split235, 2, 2},
          {"Qwen3-235B-A22B", qwen235, split235, 4, 2},
          {"DeepSeek-V3",
           WithDensePrefix(61, 3, 256, 8),
           {.num_layers = 61, .pipeline_size = 8, .first_stage_layers = 7, .last_stage_layers = 6},
           8,
           4}};
}

// Returns a micro-batch of 2^20 rows: 128 packed samples, each divided over CP as zigzag.
MicroBatchLayout Layout(const Trainer& trainer) {
  constexpr int64_t kSamples = 128, kLength = 8192;
  MicroBatchLayout layout{.cu_seqlens_padded = {0},
                          .total_rows = kSamples * kLength,
                          .cp_size = trainer.cp,
                          .tp_size = trainer.tp,
                          .sequence_parallel = true};
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t tokens = kLength - i % 7;
    layout.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
    layout.cu_seqlens_padded.push_back((i + 1) * kLength);
  }
  return layout;
}

// Returns how many bytes of ids all ranks together plan to read.
int64_t PlannedBytes(const Trainer& trainer) {
  const LayerTable table = *LayerTable::Create(trainer.split);
  const MicroBatchLayout layout = Layout(trainer);
  int64_t bytes = 0;
  for (int32_t pp = 0; pp < trainer.split.pipeline_size; ++pp) {
    for (int32_t cp = 0; cp < trainer.cp; ++cp) {
      for (int32_t tp = 0; tp < trainer.tp; ++tp) {
        const PlanRank rank{.pp_rank = pp, .rows = {.cp_rank = cp, .tp_rank = tp}};
        bytes += MakeReplayPlan(trainer.geometry, table, layout, rank)->bytes_to_read;
      }
    }
  }
  return bytes;
}

// Returns the line of the README's table for this trainer, such as
//   | Qwen3-30B-A3B, tp 4 cp 2 pp 2 | 25.2 | 1.00 | 32.0 | 64.0 | 128.0 |
// First the MB that one rank needs of 2^20 tokens; then how many times the needed bytes are sent by our plans, and by
// frameworks that send all layers of all tokens to every rank as int16, int32 and int64.
std::string TableLine(const Trainer& trainer) {
  const int64_t ranks = int64_t{trainer.tp} * trainer.cp * trainer.split.pipeline_size;
  int64_t rows = 0;
  for (const SequenceShape& sequence : Layout(trainer).sequences) rows += sequence.recorded_rows;
  const double needed = static_cast<double>(rows * trainer.geometry.raw_row_bytes());
  const double ids_shipped = static_cast<double>(ranks * rows * trainer.geometry.num_layers() * 8);
  return absl::StrFormat("| %s, tp %d cp %d pp %d | %.1f | %.2f | %.1f | %.1f | %.1f |", trainer.model, trainer.tp,
                         trainer.cp, trainer.split.pipeline_size, needed / static_cast<double>(ranks) / 1e6,
                         static_cast<double>(PlannedBytes(trainer)) / needed, 2 * ids_shipped / needed,
                         4 * ids_shipped / needed, 8 * ids_shipped / needed);
}

TEST(PlannedBytes, AreTheNeededOnesAndTheReadmeSaysSo) {
  std::ifstream file(RR_README);
  const std::string readme(std::istreambuf_iterator<char>(file), {});
  ASSERT_FALSE(readme.empty()) << RR_README;
  for (const Trainer& trainer : Trainers()) {
    const std::string line = TableLine(trainer);
    EXPECT_THAT(line, ::testing::HasSubstr("| 1.00 |"));
    EXPECT_TRUE(readme.find(line) != std::string::npos) << line;
  }
}

}  // namespace
}  // namespace routing_replay::trainer
