#include "tests/golden/kinds/neutral_layout.h"

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

int32_t SizeOr1(const Json& options, const char* name) { return options.value(name, int32_t{1}); }

// What a case says of its padding.
Json PaddingOf(const Json& input) {
  Json said = Json::object();
  const Json& neutral = input.at("neutral");
  const bool packed = neutral.at("format") == "THD";
  for (const char* name :
       {"padded_lengths", "cu_seqlens_padded", "total_padded_rows", "padded_length", "max_seq_len"}) {
    if (neutral.contains(name)) said[name] = neutral[name];
  }
  // Rectangles state their one length once per sample.
  if (!packed) {
    for (const Json& rows : said.at("padded_lengths")) {
      if (rows != said.at("padded_length")) said["padded_length"] = rows;
    }
    said.erase("padded_lengths");
    said.erase("total_padded_rows");
  }
  if (input.contains("padding_to")) said["padding_to"] = input["padding_to"];
  if (input.contains("pack_parameters")) said.update(input["pack_parameters"]);
  return said;
}

}  // namespace

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

bool HasPolicy(const Json& input) { return input.contains("framework") && input.contains("options"); }

UnpaddedBatch BatchBefore(const Json& input) {
  const Json& options = input.at("options");
  const Json neutral = input.value("neutral", Json::object());
  const bool flag = options.value("sequence_parallel", neutral.value("sequence_parallel", false));
  UnpaddedBatch batch =
      BatchOf(input.at("lengths").get<Lengths>(), SizeOr1(options, "cp"), SizeOr1(options, "tp"), flag);
  if (!neutral.contains("rows_available")) return batch;
  const auto available = neutral["rows_available"].get<Lengths>();
  for (size_t i = 0; i < batch.sequences.size(); ++i) batch.sequences[i].recorded_rows = available.at(i);
  return batch;
}

Outcome RunPolicy(const Json& input, const MicroBatchLayout& layout, bool framework_fails) {
  const std::string framework = input.at("framework").get<std::string>();
  const auto policy = PolicyOf(framework, input.at("options"));
  if (!policy.ok()) return Failed(std::string(policy.status().message()));
  const UnpaddedBatch batch = BatchBefore(input);
  const auto prediction = trainer::PredictPadding(batch, *policy);
  if (!prediction.ok()) return Failed(absl::StrCat("the policy refuses: ", prediction.status().message()));
  if (const auto difference = trainer::FirstDifference(*prediction, layout)) return Failed(*difference);
  if (framework_fails && prediction->hazards.empty())
    return Failed("the policy does not know that its framework fails");
  const auto numbers = NumbersOf(batch, *policy);
  if (!numbers.ok()) return Failed(std::string(numbers.status().message()));
  return CompareNumbers(*numbers, PaddingOf(input));
}

}  // namespace routing_replay::golden
