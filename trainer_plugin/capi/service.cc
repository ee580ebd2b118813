// C functions for fetches and inspections through the service.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/trainer/fetch.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/fetch/staging_sink.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)
using c_api::CallEnd;

namespace {

// Timeout of a read if none is given.
constexpr std::chrono::seconds kReadTimeout(120);

absl::Status Read(rrt_fetch& fetch, Run& run, std::chrono::milliseconds timeout) {
  StagingSink& sink = fetch.NewSink();
  if (!fetch.slices.empty()) {
    ReadRequest request = MakeReadRequest(fetch.plan.described.plan, fetch.slices, fetch.sequences, fetch.read_options);
    RR_RETURN_IF_ERROR(run.Read(std::move(request), sink, timeout));
  }
  fetch.ended = true;
  return absl::OkStatus();
}

// One fetch of a call of rrt_fetch_rows.
struct RowFetch {
  absl::Status Bring(Run& run, Clock::Time deadline) {
    options.timeout = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    const IndexBuffer out{.layout = plan.layout,
                          .rows = plan.shown,
                          .last_rows = plan.last_rows,
                          .indices = {static_cast<uint8_t*>(target.indices), target.indices_size},
                          .states = {reinterpret_cast<RowState*>(target.states), target.states_size}};
    RR_ASSIGN_OR_RETURN(const auto rows, FetchInto(run, plan.described.plan, sequences, options, out));
    records.reset(capi::NewRecords(plan, sequences, rows, rows));
    return absl::OkStatus();
  }

  const rrt_plan& plan;
  std::vector<FetchSequence> sequences;
  FetchOptions options;
  rrt_target target;
  std::unique_ptr<rrt_records, decltype(&rr_free)> records{nullptr, rr_free};
};

}  // namespace

rr_error* rrt_fetch_read(rrt_fetch* fetch, rr_run* run, const rr_call* call) {
  return c_api::Guard([&]() -> CallEnd {
    const std::shared_ptr<Run> from = run->shared->run;
    RR_RETURN_IF_ERROR(CheckFetch(from->geometry(), fetch->plan.described.plan, fetch->sequences));
    const auto work = [fetch, from, timeout = c_api::TimeoutOf(call, kReadTimeout)]() -> CallEnd {
      return Read(*fetch, *from, timeout);
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}

rr_error* rrt_fetch_rows(rr_run* run, rrt_row_fetch* fetches, size_t count, const rr_call* call) {
  return c_api::Guard([&]() -> CallEnd {
    const auto asked = std::make_shared<std::vector<RowFetch>>();
    for (const rrt_row_fetch& fetch : absl::MakeConstSpan(fetches, count)) {
      RR_ASSIGN_OR_RETURN(auto options, capi::OptionsFrom(fetch.options));
      asked->push_back({*fetch.plan, capi::SequencesOf(*fetch.plan, fetch.options), options, fetch.target});
    }
    const auto work = [asked, from = run->shared->run, timeout = c_api::TimeoutOf(call, kReadTimeout),
                       fetches]() -> CallEnd {
      const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
      for (RowFetch& fetch : *asked) RR_RETURN_IF_ERROR(fetch.Bring(*from, deadline));
      for (size_t i = 0; i < asked->size(); ++i) fetches[i].records = (*asked)[i].records.release();
      return {};
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}

rr_error* rrt_inspect(rr_run* run, const rrt_fetch_options* given, const rr_call* call, const rrt_records** records) {
  return c_api::Guard([&]() -> CallEnd {
    RR_ASSIGN_OR_RETURN(auto options, capi::OptionsFrom(*given));
    options.timeout = c_api::TimeoutOf(call, kReadTimeout);
    const auto work = [from = run->shared->run, options = options, sequences = capi::SequencesFrom(*given),
                       records]() -> CallEnd {
      RR_ASSIGN_OR_RETURN(const auto said, InspectSamples(*from, sequences, options));
      *records = capi::NewRecords(said, sequences);
      return {};
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}
