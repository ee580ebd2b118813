#include "tests/golden/kinds/neutral_layout.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/golden/kinds/framework_policy.h"

namespace routing_replay::golden {
namespace {

using trainer::MicroBatchLayout;
using trainer::UnpaddedBatch;
using Lengths = std::vector<int64_t>;

trainer::Partition PartitionOf(const std::string& name) {
  static const auto& partitions = *new std::map<std::string, trainer::Partition>{
      {"zigzag_per_document", trainer::Partition::kZigzagPerDocument},
      {"zigzag_per_sequence", trainer::Partition::kZigzagPerSequence},
      {"contiguous", trainer::Partition::kContiguous},
      {"contiguous_per_sequence", trainer::Partition::kContiguousPerSequence}};
  return partitions.at(name);
}

// The padding that a case states. For rectangles the length per sample is omitted: NeutralContradiction checks it.
Json PaddingOf(const Json& input) {
  Json said = Json::object();
  const Json& neutral = input.at("neutral");
  const bool packed = neutral.at("format") == "THD";
  for (const char* name : {"cu_seqlens_padded", "padded_length", "max_seq_len"}) {
    if (neutral.contains(name)) said[name] = neutral[name];
  }
  for (const char* name : {"padded_lengths", "total_padded_rows"}) {
    if (packed && neutral.contains(name)) said[name] = neutral[name];
  }
  if (input.contains("padding_to")) said["padding_to"] = input["padding_to"];
  if (input.contains("pack_parameters")) said.update(input["pack_parameters"]);
  return said;
}

// The sizes and lengths that every case has.
MicroBatchLayout BasicLayout(const Json& neutral) {
  MicroBatchLayout layout{.cp_size = neutral.at("cp_size").get<int32_t>(),
                          .tp_size = neutral.at("tp_size").get<int32_t>(),
                          .sequence_parallel = neutral.value("sequence_parallel", false)};
  const auto lengths = neutral.at("lengths").get<Lengths>();
  const auto available = neutral.at("rows_available").get<Lengths>();
  for (size_t i = 0; i < lengths.size(); ++i) {
    layout.sequences.push_back({.tokens = lengths[i], .recorded_rows = available.at(i)});
  }
  return layout;
}

void SetIfOpen(Json& neutral, const char* name, const Json& value) {
  if (!neutral.contains(name)) neutral[name] = value;
}

int64_t RoundedUp(int64_t rows, int64_t unit) { return (rows + unit - 1) / unit * unit; }

// Completes a packed stream: pads every sample to a multiple of `unit`. If the case states more rows in total, the rest
// becomes a document of padding.
void CompleteStream(Json& neutral, int64_t unit) {
  Json boundaries = {0};
  for (const int64_t rows : neutral.at("lengths").get<Lengths>()) {
    boundaries.push_back(boundaries.back().get<int64_t>() + RoundedUp(rows, unit));
  }
  if (neutral.contains("total_padded_rows") && neutral["total_padded_rows"] > boundaries.back()) {
    boundaries.push_back(neutral["total_padded_rows"]);
  }
  SetIfOpen(neutral, "cu_seqlens_padded", boundaries);
  SetIfOpen(neutral, "total_padded_rows", neutral["cu_seqlens_padded"].back());
}

void CompleteRectangle(Json& neutral, int64_t unit) {
  const auto lengths = neutral.at("lengths").get<Lengths>();
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  SetIfOpen(neutral, "batch_size", lengths.size());
  SetIfOpen(neutral, "padded_length", RoundedUp(longest, unit));
  SetIfOpen(neutral, "row_order", "sequence_major");
  SetIfOpen(neutral, "sp_slice", "after_flatten");
}

// Returns the value that `padded_lengths` must have, computed from the other fields.
Json PaddedLengthsOf(const Json& neutral, size_t count) {
  Json padded = Json::array();
  for (size_t i = 0; i < count; ++i) {
    if (neutral.at("format") == "BSHD") {
      padded.push_back(neutral.at("padded_length"));
      continue;
    }
    const Json& boundaries = neutral.at("cu_seqlens_padded");
    padded.push_back(boundaries.at(i + 1).get<int64_t>() - boundaries.at(i).get<int64_t>());
  }
  return padded;
}

}  // namespace

MicroBatchLayout NeutralLayout(const Json& neutral, const Json& order) {
  MicroBatchLayout layout = BasicLayout(neutral);
  layout.partition = PartitionOf(neutral.at("partition").get<std::string>());
  if (neutral.at("format") == "THD") {
    layout.cu_seqlens_padded = neutral.at("cu_seqlens_padded").get<Lengths>();
    layout.total_rows = neutral.at("total_padded_rows").get<int64_t>();
    return layout;
  }
  layout.format = trainer::TokenFormat::kBshd;
  layout.batch_size = neutral.at("batch_size").get<int64_t>();
  layout.padded_length = neutral.at("padded_length").get<int64_t>();
  layout.row_order = order == "batch_major" ? trainer::RowOrder::kBatchMajor : trainer::RowOrder::kSequenceMajor;
  layout.sp_slice =
      neutral.at("sp_slice") == "before_flatten" ? trainer::SpSlice::kBeforeFlatten : trainer::SpSlice::kAfterFlatten;
  return layout;
}

Json CompletedNeutral(const Json& neutral) {
  Json completed = neutral;
  const bool rectangle = neutral.contains("batch_size") || neutral.contains("padded_length");
  SetIfOpen(completed, "format", rectangle ? "BSHD" : "THD");
  const bool packed = completed["format"] == "THD";
  // If the case states the total number of rows but no partition, use the contiguous partition, which may cut the
  // stream anywhere.
  const bool stated_rows = packed && neutral.contains("total_padded_rows");
  SetIfOpen(completed, "partition",
            stated_rows ? "contiguous"
            : packed    ? "zigzag_per_document"
                        : "zigzag_per_sequence");
  const int64_t ranks = neutral.at("cp_size").get<int64_t>() * neutral.at("tp_size").get<int64_t>();
  const int64_t unit = completed["partition"] == "contiguous" && stated_rows ? 1 : std::max<int64_t>(2 * ranks, 1);
  packed ? CompleteStream(completed, unit) : CompleteRectangle(completed, unit);
  return completed;
}

std::string NeutralContradiction(const Json& input) {
  const Json& neutral = input.at("neutral");
  const bool packed = neutral.at("format") == "THD";
  Json derived = Json::object();
  derived["lengths"] = input.value("lengths", neutral.at("lengths"));
  if (neutral.contains("padded_lengths")) {
    const size_t count = std::max(neutral["padded_lengths"].size(), neutral["lengths"].size());
    derived["padded_lengths"] = PaddedLengthsOf(neutral, count);
  }
  const int64_t total = packed ? neutral.at("cu_seqlens_padded").back().get<int64_t>()
                               : neutral.at("batch_size").get<int64_t>() * neutral.at("padded_length").get<int64_t>();
  derived["total_padded_rows"] = total;
  const int64_t ranks = neutral.at("cp_size").get<int64_t>() *
                        (neutral.value("sequence_parallel", false) ? neutral.at("tp_size").get<int64_t>() : 1);
  if (ranks > 0 && total % ranks == 0) derived["local_rows"] = total / ranks;
  for (const auto& [name, value] : derived.items()) {
    if (!neutral.contains(name) || neutral[name] == value) continue;
    return absl::StrCat("neutral.", name, " is ", neutral[name].dump(), ", its other numbers give ", value.dump());
  }
  return "";
}

bool HasPolicy(const Json& input) {
  return input.contains("framework") && input.contains("options") && input["options"].is_object();
}

UnpaddedBatch BatchBefore(const Json& input) {
  const Json& options = input.at("options");
  const Json neutral = input.value("neutral", Json::object());
  const bool flag = options.value("sequence_parallel", neutral.value("sequence_parallel", false));
  const Json& lengths = input.contains("lengths") ? input["lengths"] : neutral.at("lengths");
  // Dynamic CP gives a micro-batch a size of its own.
  const int32_t cp_size = options.value("local_cp_size", options.value("cp", neutral.value("cp_size", int32_t{1})));
  UnpaddedBatch batch =
      BatchOf(lengths.get<Lengths>(), cp_size, options.value("tp", neutral.value("tp_size", int32_t{1})), flag);
  if (!neutral.contains("rows_available")) return batch;
  const auto available = neutral["rows_available"].get<Lengths>();
  for (size_t i = 0; i < batch.sequences.size(); ++i) batch.sequences[i].recorded_rows = available.at(i);
  return batch;
}

Outcome RunPolicy(const Json& input, const MicroBatchLayout& layout) {
  if (!HasPolicy(input)) return Passed();
  const auto policy = PolicyOf(input["framework"].get<std::string>(), input["options"]);
  if (!policy.ok()) return PassedWithout(absl::StrCat("their policy: ", policy.status().message()));
  const UnpaddedBatch batch = BatchBefore(input);
  const auto prediction = trainer::PredictPadding(batch, *policy);
  if (!prediction.ok()) return Failed(absl::StrCat("the policy rejects: ", prediction.status().message()));
  if (const auto difference = trainer::FirstDifference(*prediction, layout)) return Failed(*difference);
  const auto numbers = NumbersOf(batch, *policy);
  if (!numbers.ok()) return Failed(std::string(numbers.status().message()));
  return CompareNumbers(*numbers, PaddingOf(input));
}

}  // namespace routing_replay::golden
