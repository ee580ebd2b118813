// C functions for fetches and inspections through the service.
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "routing_replay/trainer/fetch.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/fetch/staging_sink.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)
using c_api::CallEnd;

namespace {

// Timeout of a read if none is given.
constexpr std::chrono::seconds kReadTimeout(120);

}  // namespace

rr_error* rrt_fetch_read(rrt_fetch* fetch, rr_run* run, const rr_call* call, const rrt_target* given,
                         const rrt_records** records) {
  return c_api::Guard([&]() -> CallEnd {
    const ReplayPlan& plan = fetch->plan.described.plan;
    const std::shared_ptr<Run> from = run->shared->run;
    if (absl::Status status = CheckFetch(from->geometry(), plan, fetch->sequences); !status.ok()) return status;
    const auto target = given == nullptr ? std::nullopt : std::optional(*given);
    const auto work = [fetch, &plan, from, timeout = c_api::TimeoutOf(call, kReadTimeout), target,
                       records]() -> CallEnd {
      StagingSink& sink = fetch->NewSink();
      if (!fetch->slices.empty()) {
        ReadRequest request = MakeReadRequest(plan, fetch->slices, fetch->sequences, fetch->read_options);
        if (absl::Status status = from->Read(std::move(request), sink, timeout); !status.ok()) return status;
      }
      fetch->ended = true;
      if (records == nullptr) return {};
      return capi::ResultOf(*fetch, target ? &*target : nullptr, records);
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}

rr_error* rrt_inspect(rr_run* run, const rrt_fetch_options* given, const rr_call* call, const rrt_records** records) {
  return c_api::Guard([&]() -> CallEnd {
    auto options = capi::OptionsFrom(*given);
    if (!options.ok()) return options.status();
    options->timeout = c_api::TimeoutOf(call, kReadTimeout);
    const auto work = [from = run->shared->run, options = *options, sequences = capi::SequencesFrom(*given),
                       records]() -> CallEnd {
      const auto said = InspectSamples(*from, sequences, options);
      if (!said.ok()) return said.status();
      *records = capi::NewRecords(*said, sequences);
      return {};
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}
