// Pipeline layouts: every stage of the pipeline written out, as Megatron-Core's pipeline_model_parallel_layout does
// (PipelineParallelLayerLayout).
#ifndef ROUTING_REPLAY_TRAINER_PIPELINE_LAYOUT_H_
#define ROUTING_REPLAY_TRAINER_PIPELINE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::trainer {

// What a stage may hold.
inline constexpr char kStageEmbedding = 'E';
inline constexpr char kStageDecoder = 't';
inline constexpr char kStageMtp = 'm';
inline constexpr char kStageLoss = 'L';

// Of the text of a layout, written out: far above what a model needs, and a bound on what a repeat can ask for.
inline constexpr size_t kMaxLayoutText = size_t{1} << 16;

// Stage s = v·P + p is chunk v of pipeline rank p. One character per entry, of the four above; a stage may be empty.
// Which orders and counts make a model is checked where a layout is used (LayerTable::Create).
struct PipelineLayout {
  std::vector<std::string> stages;
  friend bool operator==(const PipelineLayout&, const PipelineLayout&) = default;
};

// From the text form (PipelineParallelLayerLayout.parse_str_to_list), such as "Et*3|(tt|)*29m|L": stages between "|";
// x*n is n times the character x, (…)*n n times the group, which may hold "|" and no other group; commas mean nothing.
// Groups are written out before single characters, each left to right and once. n may be 0.
// INVALID_ARGUMENT (kField, field "split.layout") for everything else, quoting what was not understood.
absl::StatusOr<PipelineLayout> ParsePipelineLayout(absl::string_view text);

// From the list form: per stage the names embedding, decoder, mtp, loss, in any case, spaces around them ignored.
// INVALID_ARGUMENT as above, for encoder (which Megatron names and does not support) and all other names.
absl::StatusOr<PipelineLayout> PipelineLayoutFromNames(const std::vector<std::vector<std::string>>& stages);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PIPELINE_LAYOUT_H_
