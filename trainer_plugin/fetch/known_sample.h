// Shared by the sources without a server (local, directory): answers a read of a sample, and stages its rows.
#ifndef TRAINER_PLUGIN_FETCH_KNOWN_SAMPLE_H_
#define TRAINER_PLUGIN_FETCH_KNOWN_SAMPLE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

// A sealed sample of a source without a server. It has rows 0 … num_tokens − 2.
struct KnownSample {
  int64_t num_tokens = 0;
  std::vector<RowRange> unrecorded;      // Normal list.
  std::vector<uint32_t> token_ids;       // One per row, or empty.
  std::vector<TokenCheck> token_checks;  // Used if there are no token ids.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<WeightSpan> weights;

  // Returns the record that a server would return for this read, with index 0. A token check at an unknown position
  // counts as a mismatch.
  SampleRecord Answer(const SampleRead& asked) const;

 private:
  std::optional<uint32_t> TokenCheckAt(int64_t rows) const;
  void Judge(const SampleRead& asked, SampleRecord& record) const;
};

// Returns the record of a sample that does not exist.
SampleRecord NoSuchSample(const SampleRead& asked);

// Returns ALREADY_EXISTS. Two samples must not have the same handle, because handles also identify samples.
absl::Status HandleCollision(const std::string& sample, const std::string& other);

// Copies rows from blocks in memory into the staging buffer of a fetch.

// Stages the requested rows that exist in a sample's blocks, for all layers of the plan, as pieces of the sample with
// this index in the read. Checks planes against their CRCs.
absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_KNOWN_SAMPLE_H_
