// schedule: Megatron's order of forward passes, and the number of warm-up passes of a pipeline rank.
#include "tests/reference/schedule.h"

#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

Outcome Compare(const Json& ours, const Json& expect) {
  if (ours == expect) return Passed();
  return Failed(absl::StrCat("is ", ours.dump(), ", expected ", expect.dump()));
}

Outcome RunTable(const Json& input, const Json& expect) {
  const auto table =
      trainer::ScheduleTable(input.at("num_microbatches").get<int32_t>(), input.at("num_model_chunks").get<int32_t>(),
                             input.at("microbatch_group_size_per_vp_stage").get<int32_t>());
  if (!table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
  Json ours = Json::array();
  for (const trainer::MicroBatchChunk& entry : *table) ours.push_back({entry.micro_batch, entry.chunk});
  return Compare({{"table", std::move(ours)}}, expect);
}

Outcome RunCounts(const Json& input, const Json& expect) {
  const trainer::PipelineSchedule schedule{
      .pipeline_size = input.at("pp").get<int32_t>(),
      .pp_rank = input.at("pp_rank").get<int32_t>(),
      .virtual_stages = OptionalInt(input.at("vpp")),
      .micro_batches = input.at("num_microbatches").get<int32_t>(),
      .group_size = OptionalInt(input.at("microbatch_group_size_per_vp_stage")),
      .forward_only = input.at("forward_only").get<bool>(),
      .overlap_expert_communication = input.at("overlap_moe_expert_parallel_comm").get<bool>()};
  if (schedule.virtual_stages.value_or(1) != input.at("num_model_chunks").get<int32_t>()) {
    return Failed("the case has other model chunks than virtual stages");
  }
  const auto counts = trainer::CountPasses(schedule);
  if (!counts.ok()) return Failed(absl::StrCat("rejected: ", counts.status().message()));
  return Compare({{"total", counts->total},
                  {"all_in_warmup", counts->all_in_warmup},
                  {"warmup", counts->warmup},
                  {"remaining", counts->remaining}},
                 expect);
}

Outcome RunSchedule(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const std::string function = input.at("function").get<std::string>();
  if (function == "get_schedule_table") return RunTable(input, golden_case.at("expect"));
  if (function == "get_pp_rank_microbatches") return RunCounts(input, golden_case.at("expect"));
  return Failed(absl::StrCat("unknown function ", function));
}

}  // namespace

Kind ScheduleKind() { return {{"schedule"}, RunSchedule}; }

}  // namespace routing_replay::golden
