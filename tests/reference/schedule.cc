#include "tests/reference/schedule.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

int32_t ChunksOf(const PipelineSchedule& schedule) { return schedule.virtual_stages.value_or(1); }
int32_t GroupSizeOf(const PipelineSchedule& schedule) { return schedule.group_size.value_or(schedule.pipeline_size); }

absl::Status CheckAtLeast1(absl::string_view field, int32_t value) {
  if (value >= 1) return absl::OkStatus();
  return Invalid(absl::StrCat("schedule.", field), absl::StrCat(value, " is below 1"));
}

absl::Status CheckTable(int32_t micro_batches, int32_t chunks, int32_t group_size) {
  if (auto s = CheckAtLeast1("micro_batches", micro_batches); !s.ok()) return s;
  if (auto s = CheckAtLeast1("virtual_stages", chunks); !s.ok()) return s;
  if (auto s = CheckAtLeast1("group_size", group_size); !s.ok()) return s;
  if (int64_t{micro_batches} * chunks <= kMaxPasses) return absl::OkStatus();
  return Invalid("schedule.micro_batches",
                 absl::StrCat(micro_batches, " through ", chunks, " chunks are more than ", kMaxPasses, " passes"));
}

absl::Status CheckSizes(const PipelineSchedule& schedule) {
  if (auto s = CheckAtLeast1("pipeline_size", schedule.pipeline_size); !s.ok()) return s;
  if (schedule.pp_rank < 0 || schedule.pp_rank >= schedule.pipeline_size) {
    return Invalid("schedule.pp_rank", absl::StrCat(schedule.pp_rank, " is not in 0 … ", schedule.pipeline_size - 1));
  }
  return CheckTable(schedule.micro_batches, ChunksOf(schedule), GroupSizeOf(schedule));
}

// Checks the rules that Megatron applies when it runs the schedule, but not when it only counts the passes.
absl::Status CheckRun(const PipelineSchedule& schedule) {
  if (!schedule.virtual_stages) {
    if (!schedule.overlap_expert_communication || schedule.pipeline_size == 1) return absl::OkStatus();
    return Invalid("schedule.overlap_expert_communication", "a pipeline needs virtual stages for it");
  }
  if (schedule.pipeline_size == 1) {
    return Invalid("schedule.virtual_stages", "need a pipeline: pipeline_size is 1");
  }
  const int32_t group = GroupSizeOf(schedule);
  if (group < schedule.pipeline_size || group > schedule.micro_batches) {
    return Invalid("schedule.group_size", absl::StrCat(group, " is not in ", schedule.pipeline_size, " … ",
                                                       schedule.micro_batches, ", pipeline_size to micro_batches"));
  }
  const int32_t last = schedule.micro_batches % group;
  if (last == 0 || last >= schedule.pipeline_size) return absl::OkStatus();
  return Invalid("schedule.group_size",
                 absl::StrCat("the last group has ", last, " of ", schedule.micro_batches,
                              " micro-batches, fewer than ", schedule.pipeline_size, " pipeline ranks"));
}

// Returns the number of forward passes before the first backward pass by Megatron's formula. The result may be larger
// than the number of all passes.
int64_t WarmupPasses(const PipelineSchedule& schedule) {
  const int64_t ranks_behind = schedule.pipeline_size - schedule.pp_rank - 1;
  if (schedule.pipeline_size == 1) return 0;
  if (!schedule.virtual_stages) return ranks_behind;
  return 2 * ranks_behind + int64_t{*schedule.virtual_stages - 1} * GroupSizeOf(schedule) +
         (schedule.overlap_expert_communication ? 1 : 0);
}

// Returns the warm-up passes that really run. With overlap and without a pipeline there is one, which
// combined_1f1b_schedule_for_no_pipelining runs although get_pp_rank_microbatches does not count it.
int64_t WarmupThatRuns(const PipelineSchedule& schedule, const PassCounts& counts) {
  const bool ahead = schedule.pipeline_size == 1 && schedule.overlap_expert_communication;
  return ahead ? std::max<int64_t>(counts.warmup, 1) : counts.warmup;
}

}  // namespace

absl::StatusOr<std::vector<MicroBatchChunk>> ScheduleTable(int32_t micro_batches, int32_t chunks, int32_t group_size) {
  if (auto s = CheckTable(micro_batches, chunks, group_size); !s.ok()) return s;
  std::vector<MicroBatchChunk> table;
  table.reserve(int64_t{micro_batches} * chunks);
  for (int64_t first = 0; first < micro_batches; first += group_size) {
    const auto end = static_cast<int32_t>(std::min<int64_t>(first + group_size, micro_batches));
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      for (auto micro_batch = static_cast<int32_t>(first); micro_batch < end; ++micro_batch) {
        table.push_back({micro_batch, chunk});
      }
    }
  }
  return table;
}

absl::StatusOr<PassCounts> CountPasses(const PipelineSchedule& schedule) {
  if (auto s = CheckSizes(schedule); !s.ok()) return s;
  PassCounts counts{.total = int64_t{schedule.micro_batches} * ChunksOf(schedule)};
  counts.warmup = schedule.forward_only ? counts.total : std::min(WarmupPasses(schedule), counts.total);
  counts.all_in_warmup = counts.warmup == counts.total;
  counts.remaining = counts.total - counts.warmup;
  return counts;
}

absl::StatusOr<std::vector<Pass>> PassOrder(const PipelineSchedule& schedule) {
  const absl::StatusOr<PassCounts> counts = CountPasses(schedule);
  if (!counts.ok()) return counts.status();
  if (auto s = CheckRun(schedule); !s.ok()) return s;
  const int32_t chunks = ChunksOf(schedule);
  const auto table = ScheduleTable(schedule.micro_batches, chunks, GroupSizeOf(schedule));
  if (!table.ok()) return table.status();
  const int64_t warmup = WarmupThatRuns(schedule, *counts);
  const int64_t turns = schedule.forward_only ? counts->total : counts->total + warmup;
  std::vector<Pass> order;
  for (int64_t k = 0; k < turns; ++k) {
    if (k < counts->total) order.push_back({PassKind::kForward, (*table)[k].micro_batch, (*table)[k].chunk});
    if (k < warmup) continue;
    const MicroBatchChunk of_table = (*table)[k - warmup];
    const int32_t chunk = chunks - of_table.chunk - 1;
    if (schedule.recompute) order.push_back({PassKind::kRecompute, of_table.micro_batch, chunk});
    order.push_back({PassKind::kBackward, of_table.micro_batch, chunk});
  }
  return order;
}

std::vector<int64_t> PeakInFlight(absl::Span<const Pass> order, int32_t chunks) {
  const bool trains =
      std::any_of(order.begin(), order.end(), [](const Pass& pass) { return pass.kind == PassKind::kBackward; });
  std::vector<int64_t> in_flight(chunks), peak(chunks);
  for (const Pass& pass : order) {
    if (pass.kind == PassKind::kForward) peak[pass.chunk] = std::max(peak[pass.chunk], ++in_flight[pass.chunk]);
    if (pass.kind == PassKind::kBackward || !trains) --in_flight[pass.chunk];
  }
  return peak;
}

}  // namespace routing_replay::trainer
