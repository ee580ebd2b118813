// What is behind the opaque types of capi.h.
#ifndef TRAINER_PLUGIN_CAPI_OBJECTS_H_
#define TRAINER_PLUGIN_CAPI_OBJECTS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/reader/read_checker.h"
#include "proto/capi/bytes.h"
#include "proto/capi/error.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/capi.h"
#include "routing_replay/trainer/local_source.h"
#include "routing_replay/trainer/replay_targets.h"
#include "trainer_plugin/fetch/staging_sink.h"
#include "trainer_plugin/layout/plan_json.h"

struct rrt_error final : routing_replay::capi::ErrorObject {
  using ErrorObject::ErrorObject;
};

struct rrt_bytes final : routing_replay::capi::BytesObject {
  using BytesObject::BytesObject;
};

struct rrt_plan final {
  routing_replay::trainer::DescribedPlan described;
  routing_replay::trainer::BufferLayout layout;
};

// Its parts refer to each other, so it stays where it is made.
struct rrt_fetch final {
  explicit rrt_fetch(const rrt_plan& of) : plan(of) {}
  rrt_fetch(const rrt_fetch&) = delete;
  rrt_fetch& operator=(const rrt_fetch&) = delete;

  const rrt_plan& plan;
  std::vector<routing_replay::trainer::FetchSequence> sequences;
  routing_replay::trainer::FetchOptions options;
  routing_replay::ReadRequest request;
  routing_replay::trainer::StagedRows staged;
  std::unique_ptr<routing_replay::trainer::StagingSink> sink;
  std::unique_ptr<routing_replay::ReadChecker> checker;
  bool ended = false;
};

struct rrt_local_source final {
  routing_replay::trainer::LocalSource source;
};

struct rrt_replay_targets final {
  routing_replay::trainer::ReplayTargets targets;
};

namespace routing_replay::capi {

// What realigns an ended fetch of this plan. INVALID_ARGUMENT or FAILED_PRECONDITION if it is none.
absl::StatusOr<trainer::RealignPlan> PlanRealignOf(const rrt_plan& plan, const rrt_fetch& fetch);

template <typename Body>
rrt_error* Guard(Body&& body) noexcept {
  return Barrier<rrt_error>(std::forward<Body>(body));
}

}  // namespace routing_replay::capi

#endif  // TRAINER_PLUGIN_CAPI_OBJECTS_H_
