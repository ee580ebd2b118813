// C functions for agreements, and for merging records.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/trainer/agreement.h"
#include "routing_replay/trainer/merge_records.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

struct rrt_agreement final : c_api::Object {
  rrt_agreement(int32_t rank, absl::StatusOr<StepReport> seen) : agreement(rank, std::move(seen)) {}

  StepAgreement agreement;
};

namespace {

using nlohmann::json;

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
  uint64_t content_id = 0;
  object.Read("content_id", content_id);
  if (object.Find("content_id") != nullptr) report.content_id = content_id;
  object.Read("oldest_weight_version", report.oldest_weight_version);
  object.Read("newest_weight_version", report.newest_weight_version);
  RR_RETURN_IF_ERROR(object.status());
  return report;
}

absl::StatusOr<StepReport> StepReportFrom(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(const auto value, ParseJson(text, "agreement"));
  JsonObject object(value, "");
  StepReport step;
  object.Read("policy",
              {{"strict", MissingPolicy::kStrict}, {"live", MissingPolicy::kLive}, {"drop", MissingPolicy::kDrop}},
              step.policy);
  object.Read("geometry_fingerprint", step.geometry_fingerprint);
  object.Read("source_failed", step.source_failed);
  const json* samples = object.Find("samples");
  RR_RETURN_IF_ERROR(object.status());
  if (samples == nullptr || !samples->is_array()) return Invalid(Reason::kField, "samples", "must be a list");
  for (const json& sample : *samples) {
    RR_ASSIGN_OR_RETURN(auto report, SampleReportFrom(sample, absl::StrCat("samples[", step.samples.size(), "]")));
    step.samples.push_back(std::move(report));
  }
  return step;
}

template <typename Value>
void Put(json& to, const char* key, const std::optional<Value>& value) {
  if (value) to[key] = *value;
}

json ToJson(const SampleDecision& said) {
  constexpr const char* kActions[] = {"replay", "live", "drop"};
  json out = {{"action", kActions[static_cast<int>(said.action)]}, {"status", ReportedStatusName(said.status)}};
  Put(out, "missing_on", said.missing_on);
  Put(out, "num_tokens", said.num_tokens);
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
  return out;
}

// Checks that all ranks planned the same micro-batch, of whole samples.
absl::Status CheckMerge(absl::Span<const rrt_plan* const> plans) {
  if (plans.empty()) return Invalid(Reason::kLength, "plans", "must not be empty");
  for (const rrt_plan* plan : plans) {
    if (!plan->described.pieces.empty())
      return Invalid(Reason::kField, "plans", "must not have sequences that consist of pieces");
    if (plan->described.samples != plans[0]->described.samples ||
        plan->described.layout != plans[0]->described.layout) {
      return Invalid(Reason::kField, "plans", "must be plans of the same micro-batch");
    }
  }
  return absl::OkStatus();
}

}  // namespace

rr_error* rrt_agreement_new(int32_t rank, rr_text json, rrt_agreement** agreement) {
  return Guard([&] {
    *agreement = new rrt_agreement(rank, StepReportFrom(View(json)));
    return absl::OkStatus();
  });
}

size_t rrt_agreement_words(const rrt_agreement* agreement, const int64_t** words) {
  const absl::Span<const int64_t> next = agreement->agreement.words();
  *words = next.data();
  return next.size();
}

rr_error* rrt_agreement_push(rrt_agreement* agreement, const int64_t* reduced, size_t count) {
  return Guard([&] { return agreement->agreement.Push({reduced, count}); });
}

rr_error* rrt_agreement_decision(const rrt_agreement* agreement, const rr_bytes** decision) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto decided, agreement->agreement.decision());
    *decision = NewBytes(DumpJson(ToJson(decided)));
    return absl::OkStatus();
  });
}

rr_error* rrt_merge_records(const rrt_plan* const* plans, const void* const* indices, const size_t* sizes, size_t count,
                            const rrt_merged** merged) {
  return Guard([&]() -> absl::Status {
    RR_RETURN_IF_ERROR(CheckMerge({plans, count}));
    std::vector<RankRecord> records;
    for (size_t i = 0; i < count; ++i) {
      records.push_back({plans[i]->layout, plans[i]->described.plan.row_map, Bytes(indices[i], sizes[i])});
    }
    const DescribedPlan& described = plans[0]->described;
    RR_ASSIGN_OR_RETURN(const auto found,
                        MergeRecords(described.geometry, described.layout, records, described.samples));
    Result<rrt_merged> result;
    const auto list = result.Array<rrt_merged_sequence>(found.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const std::vector<uint8_t>& planes = found[i].planes;
      list[i] = {found[i].rows, result.Copy(absl::MakeConstSpan(planes)), planes.size()};
    }
    *result = {list.data(), list.size()};
    *merged = result.Release();
    return absl::OkStatus();
  });
}
