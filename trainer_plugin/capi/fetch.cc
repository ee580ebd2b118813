// C functions for fetches: options, cache, result, and realigning here or staging for a device.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/clock.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/layout/multiple.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

struct rrt_step_cache final : c_api::Object {
  explicit rrt_step_cache(int64_t max_bytes) : cache(std::make_shared<StepCache>(max_bytes)) {}

  const std::shared_ptr<StepCache> cache;
};

struct rrt_staged final : c_api::Object {
  rrt_staged(const rrt_plan& of, const StagedRows& rows, RealignPlan realigned)
      : plan(of), staged(rows), realign(std::move(realigned)), size(SizeOfPackedPlan(of.layout, realign)) {}

  // The staged rows begin at a multiple of kBufferAlignment, as if they were the start of a device buffer.
  int64_t staging_offset() const { return RoundUp(size.bytes, kBufferAlignment); }
  int64_t bytes() const { return staging_offset() + static_cast<int64_t>(staged.staging.size()); }

  const rrt_plan& plan;
  const StagedRows& staged;
  const RealignPlan realign;
  const PackedPlanSize size;
};

namespace {

absl::Status NotEnded() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "fetch: has not ended yet; wait for it first",
                   {.field = "fetch"});
}

FetchSequence SequenceFrom(const rrt_sequence& given) {
  FetchSequence sequence{.sample = c_api::String(given.sample),
                         .handle = given.handle,
                         .num_tokens = c_api::Optional(given.num_tokens),
                         .live = given.live != 0};
  if (given.has_token_check != 0) {
    sequence.token_checks.push_back({given.token_check.rows, given.token_check.crc32c});
  }
  if (given.has_content_id != 0) sequence.content_id = given.content_id;
  return sequence;
}

// Makes the realign plan of a fetch that has ended.
absl::StatusOr<RealignPlan> PlanRealignOf(const rrt_fetch& fetch) {
  if (!fetch.ended) return NotEnded();
  const StagedRows& staged = fetch.staged;
  const rrt_plan& plan = fetch.plan;
  return PlanRealign(
      plan.layout,
      {.pieces = staged.pieces, .rows = plan.shown, .unrecorded = staged.unrecorded, .last_rows = plan.last_rows});
}

}  // namespace

void rrt_fetch::Ask(std::vector<int32_t> next) {
  slices = std::move(next);
  read_options = cached == nullptr ? options : cached->read_options();
  staged = {};
  sink = nullptr;
  ended = false;
}

StagingSink& rrt_fetch::NewSink() {
  staged = {};
  sink = std::make_unique<StagingSink>(plan.described.plan, slices, sequences, read_options, staged);
  ended = false;
  return *sink;
}

namespace routing_replay::capi {

absl::StatusOr<FetchOptions> OptionsFrom(const rrt_fetch_options& given) {
  RR_ASSIGN_OR_RETURN(const auto producer, c_api::ProducerFrom(given.producer));
  if (given.missing < RRT_STRICT || given.missing > RRT_DROP) {
    return Invalid(Reason::kField, "missing", absl::StrCat(given.missing, " is not an rrt_missing"));
  }
  return FetchOptions{
      .producer = producer, .missing = static_cast<MissingPolicy>(given.missing), .wait = given.wait != 0};
}

std::vector<FetchSequence> SequencesFrom(const rrt_fetch_options& given) {
  std::vector<FetchSequence> sequences;
  sequences.reserve(given.count);
  for (size_t i = 0; i < given.count; ++i) sequences.push_back(SequenceFrom(given.sequences[i]));
  return sequences;
}

rrt_records* NewRecords(absl::Span<const SampleRecord> records, absl::Span<const FetchSequence> sequences,
                        const ReplayPlan* plan) {
  Result<rrt_records> result;
  const auto list = result.Array<rrt_record>(records.size());
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].sequence = plan == nullptr ? records[i].index : plan->slices[records[i].index].sequence;
    list[i].sample = result.Text(sequences[list[i].sequence].sample);
    Fill(records[i], result, list[i].said);
  }
  result->data = list.data();
  result->count = list.size();
  return result.Release();
}

std::vector<FetchSequence> SequencesOf(const rrt_plan& plan, const rrt_fetch_options& given) {
  if (given.sequences != nullptr) return SequencesFrom(given);
  std::vector<FetchSequence> sequences;
  for (size_t i = 0; i < plan.described.sequences(); ++i) {
    sequences.push_back({.sample = plan.described.sample(i), .num_tokens = plan.described.num_tokens(i)});
  }
  return sequences;
}

rrt_records* NewRecords(const rrt_plan& plan, absl::Span<const FetchSequence> sequences, const FetchedSamples& samples,
                        const RowCounts& counts) {
  rrt_records* const records = NewRecords(samples.records, sequences, &plan.described.plan);
  records->fallback_sequences = samples.fallback_sequences;
  records->replayed_rows = counts.replayed_rows;
  records->unrecorded_rows = counts.unrecorded_rows;
  records->pad_rows = counts.pad_rows;
  return records;
}

absl::StatusOr<std::unique_ptr<rrt_fetch>> NewFetch(const rrt_plan& plan, const rrt_fetch_options& given) {
  RR_ASSIGN_OR_RETURN(auto options, OptionsFrom(given));
  auto made = std::make_unique<rrt_fetch>(plan);
  made->options = options;
  made->sequences = SequencesOf(plan, given);
  RR_RETURN_IF_ERROR(CheckSequences(plan.described.plan, made->sequences));
  made->Ask(SlicesToRead(plan.described.plan, made->sequences));
  return made;
}

}  // namespace routing_replay::capi

rr_error* rrt_fetch_new(const rrt_plan* plan, const rrt_fetch_options* options, rrt_fetch** fetch) {
  return Guard([&]() -> absl::Status {
    auto made = NewFetch(*plan, *options);
    if (made.ok()) *fetch = made->release();
    return made.status();
  });
}

rr_error* rrt_fetch_give_up(rrt_fetch* fetch, rr_text why) {
  return Guard([&]() -> absl::Status {
    absl::Status status;
    if (!fetch->ended) {
      StagingSink& sink = fetch->sink == nullptr ? fetch->NewSink() : *fetch->sink;
      status = sink.GiveUp(View(why));
      // Give the rows to the cache even if the policy rejects a sample, because other fetches may wait for them.
      if (fetch->cached != nullptr) fetch->cached->Give(fetch->staged);
    }
    if (!status.ok()) return status;
    if (fetch->cached != nullptr) {
      RR_ASSIGN_OR_RETURN(fetch->staged, fetch->cached->Take(View(why)));
    }
    fetch->ended = true;
    return absl::OkStatus();
  });
}

rr_error* rrt_fetch_result(const rrt_fetch* fetch, const rrt_target* target, const rrt_records** records) {
  return Guard([&]() -> absl::Status {
    if (!fetch->ended) return NotEnded();
    const StagedRows& staged = fetch->staged;
    RowCounts counts;
    if (target != nullptr) {
      RR_ASSIGN_OR_RETURN(const auto realign, PlanRealignOf(*fetch));
      RR_RETURN_IF_ERROR(Realign(fetch->plan.layout, realign, staged.staging,
                                 {static_cast<uint8_t*>(target->indices), target->indices_size},
                                 {reinterpret_cast<RowState*>(target->states), target->states_size}));
      counts = realign;
    }
    *records = NewRecords(fetch->plan, fetch->sequences, staged, counts);
    return absl::OkStatus();
  });
}

rr_error* rrt_staged_new(const rrt_fetch* fetch, rrt_staged** staged, rrt_staged_shape* shape) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(auto realign, PlanRealignOf(*fetch));
    auto* made = new rrt_staged(fetch->plan, fetch->staged, std::move(realign));
    *staged = made;
    *shape = {.bytes = made->bytes(),
              .staging_offset = made->staging_offset(),
              .states_offset = made->size.bytes - made->plan.layout.rows(),
              .units = made->size.units,
              .replayed_rows = made->realign.replayed_rows,
              .unrecorded_rows = made->realign.unrecorded_rows,
              .pad_rows = made->realign.pad_rows};
    return absl::OkStatus();
  });
}

rr_error* rrt_staged_write(const rrt_staged* staged, void* block, size_t size) {
  return Guard([&]() -> absl::Status {
    const int64_t bytes = staged->bytes(), offset = staged->staging_offset();
    if (size < static_cast<size_t>(bytes)) {
      return Invalid(Reason::kLength, "block", absl::StrCat("has ", size, " bytes, needs ", bytes));
    }
    auto* out = static_cast<uint8_t*>(block);
    absl::Status status = PackPlan(staged->plan.layout, staged->realign, {out, static_cast<size_t>(offset)});
    const std::vector<uint8_t>& rows = staged->staged.staging;
    if (status.ok() && !rows.empty()) std::memcpy(out + offset, rows.data(), rows.size());
    return status;
  });
}

rr_error* rrt_step_cache_new(int64_t max_bytes, rrt_step_cache** cache) {
  return Guard([&]() -> absl::Status {
    if (max_bytes < 0) return Invalid(Reason::kField, "max_bytes", "must be at least 0");
    *cache = new rrt_step_cache(max_bytes);
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_attach(const rrt_step_cache* cache, rrt_fetch* fetch, int32_t ahead) {
  return Guard([&]() -> absl::Status {
    if (ahead < 0 || ahead > 1) return Invalid(Reason::kField, "ahead", "must be 0 or 1");
    if (fetch->cached != nullptr) return Invalid(Reason::kField, "fetch", "has a cache already");
    fetch->cached = std::make_unique<CachedFetch>(cache->cache, fetch->plan.described.plan, fetch->sequences,
                                                  fetch->options, static_cast<FetchTime>(ahead));
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_detach(rrt_fetch* fetch) {
  return Guard([&] {
    fetch->cached = nullptr;
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_next(rrt_fetch* fetch, int64_t timeout_ms, int32_t* reads) {
  return Guard([&]() -> absl::Status {
    CachedFetch* cached = fetch->cached.get();
    if (cached == nullptr) return Invalid(Reason::kField, "fetch", "must have a cache");
    if (fetch->ended) cached->Give(fetch->staged);
    if (cached->IsReading()) {
      return MakeError(absl::StatusCode::kFailedPrecondition, "fetch: its read has not ended", {.field = "fetch"});
    }
    fetch->ended = false;
    auto slices = cached->Next(DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds(timeout_ms)));
    if (!slices.ok()) {
      // No read of this fetch is in progress, so the caller may give up now, and then gets the slices that were read.
      fetch->ended = true;
      return slices.status();
    }
    if (!slices->empty()) {
      fetch->Ask(*std::move(slices));
      *reads = 1;
      return absl::OkStatus();
    }
    RR_ASSIGN_OR_RETURN(fetch->staged, cached->Take(""));
    fetch->ended = true;
    *reads = 0;
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_end_step(rrt_step_cache* cache) {
  return Guard([&] {
    cache->cache->EndStep();
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_stop(rrt_step_cache* cache) {
  return Guard([&] {
    cache->cache->Stop();
    return absl::OkStatus();
  });
}

rr_error* rrt_step_cache_counters(const rrt_step_cache* cache, rrt_step_cache_counts* counts) {
  return Guard([&] {
    const StepCache::Counters counters = cache->cache->counters();
    *counts = {
        .hits = counters.hits, .misses = counters.misses, .bytes = counters.bytes, .bytes_read = counters.bytes_read};
    return absl::OkStatus();
  });
}
