// What the quick start plays: runs, their samples, the routes their engines chose, and how each sample is sent. Every
// process inherits the scenario from the first one, so a rank's expectation never passed through the server.
#ifndef TESTS_QUICKSTART_SCENARIO_H_
#define TESTS_QUICKSTART_SCENARIO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "tests/generator/latent_generator.h"

namespace routing_replay::quickstart {

inline constexpr int32_t kWorkers = 4;
inline constexpr int64_t kMicroBatchTokens = 8192;

// The form in which a rollout engine hands over rows.
enum class PayloadForm : uint8_t { kRawInt32, kNpy, kBase64Int32, kBase64Npy };
inline constexpr int32_t kPayloadForms = 4;
const char* PayloadFormName(PayloadForm form);

struct SamplePlan {
  std::string id;
  int64_t num_tokens = 0;  // T. The sample has rows [0, T - 1).
  PayloadForm form = PayloadForm::kRawInt32;
  std::vector<RowRange> turns;       // Rows of each append; together all rows.
  std::vector<RowRange> unrecorded;  // Rows that the engine lost, as a normal list.

  int64_t rows() const { return num_tokens - 1; }
  int64_t recorded_rows() const { return rows() - TotalRows(unrecorded); }
};

// One run: the samples of one model.
struct Play {
  std::string run;
  std::string description;
  Geometry geometry;
  std::vector<SamplePlan> samples;
  std::vector<testing::GeneratedSample> truth;  // Per sample: its tokens and all its rows, including the lost ones.

  // Half-open index ranges of samples that form one micro-batch: at most kMicroBatchTokens tokens, or a single sample.
  std::vector<RowRange> MicroBatches() const;
};

// 32 synthetic samples of the Qwen3-30B-A3B shape, or every trace of `trace_directory` if it is not empty.
absl::StatusOr<std::vector<Play>> MakeScenario(const std::string& trace_directory);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_SCENARIO_H_
