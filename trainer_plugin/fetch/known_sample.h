// How sources whose rows are in memory or files (local, directory) answer for a sample and stage its rows.
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

// What a source without a server knows of a sample, and its answers.

// Rows 0 … num_tokens − 2 of a sealed sample.
struct KnownSample {
  int64_t num_tokens = 0;
  std::vector<RowRange> unrecorded;      // Normal list.
  std::vector<uint32_t> token_ids;       // For all rows' positions, or empty.
  std::vector<TokenCheck> token_checks;  // Given if there are no token ids.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<WeightSpan> weights;

  // The record of a read, with index 0 and the status that a server would give. A token check that is unknown does not
  // match.
  SampleRecord Answer(const SampleRead& asked) const;

 private:
  std::optional<uint32_t> TokenCheckAt(int64_t rows) const;
  void Judge(const SampleRead& asked, SampleRecord& record) const;
};

// The record of a sample that does not exist.
SampleRecord NoSuchSample(const SampleRead& asked);

// ALREADY_EXISTS: a source also identifies samples by their handles.
absl::Status HandleCollision(const std::string& sample, const std::string& other);

// Copies rows of blocks in memory into the staging buffer of a fetch.

// Stages the requested rows of a sample's blocks, as far as they exist, with all layers of the plan, as pieces of the
// read's sample number `index`. Checks planes against their CRCs.
absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_KNOWN_SAMPLE_H_
