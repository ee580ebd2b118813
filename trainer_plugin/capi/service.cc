// Fetches and inspections from a run of the service.
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "client/c_api/calls.h"
#include "client/c_api/objects.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/fetch/staging_sink.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)
using c_api::CallEnd;

namespace {

// How long a read takes where nothing is said.
constexpr std::chrono::seconds kReadTimeout(120);

std::chrono::milliseconds TimeoutOf(const rr_call* call) {
  const bool says_timeout = call != nullptr && call->timeout_ms >= 0;
  return says_timeout ? std::chrono::milliseconds(call->timeout_ms) : kReadTimeout;
}

}  // namespace

rr_error* rrt_fetch_read(rrt_fetch* fetch, rr_run* run, const rr_call* call) {
  return c_api::Guard([&]() -> CallEnd {
    const ReplayPlan& plan = fetch->plan.described.plan;
    const std::shared_ptr<Run> from = run->run->run;
    if (absl::Status status = CheckFetch(from->geometry(), plan, fetch->sequences); !status.ok()) return status;
    const auto work = [fetch, &plan, from, timeout = TimeoutOf(call)]() -> CallEnd {
      capi::StartReading(*fetch, std::vector<int32_t>(fetch->slices));
      if (!fetch->slices.empty()) {
        ReadRequest request = MakeReadRequest(plan, fetch->slices, fetch->sequences, fetch->read_options);
        if (absl::Status status = from->Read(std::move(request), *fetch->sink, timeout); !status.ok()) return status;
      }
      fetch->ended = true;
      return {};
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}

rr_error* rrt_inspect_read(rrt_inspect* inspect, rr_run* run, const rr_call* call) {
  return c_api::Guard([&]() -> CallEnd {
    const auto work = [inspect, from = run->run->run, timeout = TimeoutOf(call)]() -> CallEnd {
      inspect->sink = std::make_unique<InspectSink>(inspect->sequences);
      if (!inspect->sequences.empty()) {
        const absl::Status status = from->Read(inspect->request, *inspect->sink, timeout);
        if (absl::IsDeadlineExceeded(status)) {
          inspect->sink->GiveUp(status.message());
        } else if (!status.ok()) {
          return status;
        }
      }
      inspect->ended = true;
      return {};
    };
    return c_api::Perform(call, work, c_api::Timeout::kOfWork);
  });
}
