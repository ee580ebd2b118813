// Ranks in threads, what all ranks do with a step, and what they recorded put together.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/clock.h"
#include "routing_replay/trainer/collective.h"
#include "routing_replay/trainer/merge_records.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

struct rrt_collective final {
  std::unique_ptr<Collective> collective;
};

struct rrt_agreement final {
  StepAgreement agreement;
};

struct rrt_merged final {
  std::vector<MergedSequence> sequences;
};

namespace {

using nlohmann::json;

constexpr int32_t kMaxLocalRanks = 4096;

Collective::Deadline After(int64_t timeout_ms) {
  return DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds(timeout_ms));
}

std::vector<std::pair<const char*, SampleStatus>> StatusNames() {
  std::vector<std::pair<const char*, SampleStatus>> names;
  for (auto number = static_cast<int>(SampleStatus::kOk); number <= static_cast<int>(kLastSampleStatus); ++number) {
    const auto status = static_cast<SampleStatus>(number);
    names.emplace_back(SampleStatusName(status), status);
  }
  return names;
}

absl::StatusOr<SampleReport> SampleReportFrom(const json& value, absl::string_view path) {
  JsonObject object(value, path);
  SampleReport report;
  object.Read("handle", report.handle);
  if (object.Find("handle") == nullptr) object.Require("sample");
  object.Read("sample", report.sample);
  static const auto* const names = new std::vector(StatusNames());
  object.Read("status", *names, report.status);
  object.Read("num_tokens", report.num_tokens);
  object.Read("revision", report.revision);
  uint64_t content_id = 0;
  object.Read("content_id", content_id);
  if (object.Find("content_id") != nullptr) report.content_id = content_id;
  object.Read("oldest_weight_version", report.oldest_weight_version);
  object.Read("newest_weight_version", report.newest_weight_version);
  if (absl::Status status = object.status(); !status.ok()) return status;
  return report;
}

absl::StatusOr<StepReport> StepReportFrom(absl::string_view text) {
  const auto value = ParseJson(text, "agreement");
  if (!value.ok()) return value.status();
  JsonObject object(*value, "");
  StepReport step;
  object.Read("policy", MissingPolicyNames(), step.policy);
  object.Read("geometry_fingerprint", step.geometry_fingerprint);
  object.Read("source_failed", step.source_failed);
  const json* samples = object.Find("samples");
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (samples == nullptr || !samples->is_array()) return Invalid(Reason::kField, "samples", "is not a list");
  for (const json& sample : *samples) {
    auto report = SampleReportFrom(sample, absl::StrCat("samples[", step.samples.size(), "]"));
    if (!report.ok()) return report.status();
    step.samples.push_back(*std::move(report));
  }
  return step;
}

template <typename Value>
void Put(json& to, const char* key, const std::optional<Value>& value) {
  if (value) to[key] = *value;
}

json ToJson(const SampleDecision& said) {
  constexpr const char* kActions[] = {"replay", "live", "drop"};
  json out = {{"action", kActions[static_cast<int>(said.action)]},
              {"status", ReportedStatusName(said.status)},
              {"missing_everywhere", said.missing_everywhere}};
  Put(out, "missing_on", said.missing_on);
  Put(out, "num_tokens", said.num_tokens);
  Put(out, "revision", said.revision);
  Put(out, "content_id", said.content_id);
  Put(out, "oldest_weight_version", said.oldest_weight_version);
  Put(out, "newest_weight_version", said.newest_weight_version);
  return out;
}

json ToJson(const StepDecision& decision) {
  json out = {{"samples", json::array()},
              {"counts", json::object()},
              {"replayed", decision.replayed},
              {"fallen_back", decision.fallen_back}};
  for (const SampleDecision& said : decision.samples) out["samples"].push_back(ToJson(said));
  for (const auto& [status, count] : decision.counts) out["counts"][ReportedStatusName(status)] = count;
  Put(out, "source_failed_on", decision.source_failed_on);
  return out;
}

// The same micro-batch on all ranks, of whole samples.
absl::Status CheckMerge(absl::Span<const rrt_plan* const> plans) {
  if (plans.empty()) return Invalid(Reason::kLength, "plans", "there are none");
  for (const rrt_plan* plan : plans) {
    if (!plan->described.pieces.empty())
      return Invalid(Reason::kField, "plans", "a sequence is put together of pieces");
    if (plan->described.samples != plans[0]->described.samples ||
        plan->described.layout != plans[0]->described.layout) {
      return Invalid(Reason::kField, "plans", "are of other micro-batches");
    }
  }
  return absl::OkStatus();
}

}  // namespace

rrt_error* rrt_local_collectives_new(int32_t size, rrt_collective** ranks) {
  return Guard([&]() -> absl::Status {
    if (size < 1 || size > kMaxLocalRanks) {
      return Invalid(Reason::kField, "size", absl::StrCat(size, " is not in 1 … ", kMaxLocalRanks));
    }
    std::vector<std::unique_ptr<rrt_collective>> made;
    for (auto& collective : MakeLocalCollectives(size)) {
      made.push_back(std::unique_ptr<rrt_collective>(new rrt_collective{std::move(collective)}));
    }
    std::transform(made.begin(), made.end(), ranks, [](auto& rank) { return rank.release(); });
    return absl::OkStatus();
  });
}
void rrt_collective_free(rrt_collective* collective) { delete collective; }

rrt_error* rrt_collective_all_reduce_max(rrt_collective* collective, int64_t* values, size_t count,
                                         int64_t timeout_ms) {
  return Guard([&] { return collective->collective->AllReduceMax({values, count}, After(timeout_ms)); });
}

rrt_error* rrt_collective_all_gather(rrt_collective* collective, const void* bytes, size_t size, int64_t timeout_ms,
                                     rrt_bytes** gathered) {
  return Guard([&]() -> absl::Status {
    const auto all = collective->collective->AllGather(Bytes(bytes, size), After(timeout_ms));
    if (!all.ok()) return all.status();
    return Give(std::string(all->begin(), all->end()), gathered);
  });
}

rrt_error* rrt_agreement_new(int32_t rank, const char* text, size_t size, rrt_agreement** agreement) {
  return Guard([&] {
    *agreement = new rrt_agreement{StepAgreement(rank, StepReportFrom(Text(text, size)))};
    return absl::OkStatus();
  });
}
void rrt_agreement_free(rrt_agreement* agreement) { delete agreement; }

rrt_error* rrt_agreement_words(const rrt_agreement* agreement, rrt_bytes** words) {
  return Guard([&] {
    const absl::Span<const int64_t> next = agreement->agreement.words();
    return Give(std::string(reinterpret_cast<const char*>(next.data()), next.size() * sizeof(int64_t)), words);
  });
}

rrt_error* rrt_agreement_push(rrt_agreement* agreement, const int64_t* reduced, size_t count) {
  return Guard([&] { return agreement->agreement.Push({reduced, count}); });
}

rrt_error* rrt_agreement_decision(const rrt_agreement* agreement, rrt_bytes** decision) {
  return Guard([&]() -> absl::Status {
    const auto decided = agreement->agreement.decision();
    if (!decided.ok()) return decided.status();
    return Give(ToJson(*decided), decision);
  });
}

uint64_t rrt_plan_geometry_fingerprint(const rrt_plan* plan) { return plan->described.geometry.fingerprint(); }

rrt_error* rrt_merge_records(const rrt_plan* const* plans, const void* const* indices, const size_t* sizes,
                             size_t count, rrt_merged** merged) {
  return Guard([&]() -> absl::Status {
    if (absl::Status status = CheckMerge({plans, count}); !status.ok()) return status;
    std::vector<RankRecord> records;
    for (size_t i = 0; i < count; ++i) {
      records.push_back({plans[i]->layout, plans[i]->described.plan.row_map, Bytes(indices[i], sizes[i])});
    }
    const DescribedPlan& described = plans[0]->described;
    auto sequences =
        MergeRecords(described.geometry, described.layout, records, {.ordinals = {}, .samples = described.samples});
    if (!sequences.ok()) return sequences.status();
    *merged = new rrt_merged{*std::move(sequences)};
    return absl::OkStatus();
  });
}
void rrt_merged_free(rrt_merged* merged) { delete merged; }
int32_t rrt_merged_sequences(const rrt_merged* merged) { return static_cast<int32_t>(merged->sequences.size()); }

rrt_error* rrt_merged_sequence(const rrt_merged* merged, int32_t sequence, int64_t* rows, rrt_bytes** planes) {
  return Guard([&]() -> absl::Status {
    if (sequence < 0 || static_cast<size_t>(sequence) >= merged->sequences.size()) {
      return Invalid(Reason::kField, "sequence",
                     absl::StrCat(sequence, " is none of ", merged->sequences.size(), " sequences"));
    }
    const MergedSequence& found = merged->sequences[sequence];
    absl::Status given = Give(std::string(found.planes.begin(), found.planes.end()), planes);
    if (given.ok()) *rows = found.rows;
    return given;
  });
}
