// What is behind the opaque types of capi.h.
#ifndef TRAINER_PLUGIN_CAPI_OBJECTS_H_
#define TRAINER_PLUGIN_CAPI_OBJECTS_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routing_replay/trainer/capi.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/source.h"
#include "trainer_plugin/capi/boundary.h"
#include "trainer_plugin/fetch/staging_sink.h"
#include "trainer_plugin/fetch/step_cache.h"
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
  std::string run;
  std::vector<int32_t> slices;                         // Of the plan, those being read …
  routing_replay::trainer::FetchOptions read_options;  // … and how.
  routing_replay::trainer::StagedRows staged;
  std::unique_ptr<routing_replay::trainer::CachedFetch> cached;  // Where a cache stands before the source.
  std::unique_ptr<routing_replay::trainer::StagingSink> sink;
  bool ended = false;
};

// As rrt_fetch; `options.timeout` is not used.
struct rrt_inspect final {
  explicit rrt_inspect(routing_replay::Geometry of) : geometry(std::move(of)) {}
  rrt_inspect(const rrt_inspect&) = delete;
  rrt_inspect& operator=(const rrt_inspect&) = delete;

  const routing_replay::Geometry geometry;
  std::vector<routing_replay::trainer::FetchSequence> sequences;
  routing_replay::ReadRequest request;
  std::unique_ptr<routing_replay::trainer::InspectSink> sink;
  bool ended = false;
};

struct rrt_local_source final {
  routing_replay::trainer::LocalSource source;
};

struct rrt_directory_source final {
  std::unique_ptr<const routing_replay::trainer::DirectorySource> source;
};

struct rrt_step_cache final {
  std::shared_ptr<routing_replay::trainer::StepCache> cache;
};

namespace routing_replay::capi {

// As descriptions of fetches and agreements name them.
inline const std::vector<std::pair<const char*, trainer::MissingPolicy>>& MissingPolicyNames() {
  using trainer::MissingPolicy;
  static const auto* const names = new std::vector<std::pair<const char*, MissingPolicy>>{
      {"strict", MissingPolicy::kStrict}, {"live", MissingPolicy::kLive}, {"drop", MissingPolicy::kDrop}};
  return *names;
}

// What realigns an ended fetch of this plan. INVALID_ARGUMENT or FAILED_PRECONDITION if it is none.
absl::StatusOr<trainer::RealignPlan> PlanRealignOf(const rrt_plan& plan, const rrt_fetch& fetch);

template <typename Body>
rrt_error* Guard(Body&& body) noexcept {
  return Barrier<rrt_error>(std::forward<Body>(body));
}

// What a fetch or an inspection is told, as rrt_fetch_new says. `sequences` and `geometry` as they are where it does
// not say them.
struct FetchDescription {
  std::string run;
  trainer::FetchOptions options;
  std::vector<trainer::FetchSequence> sequences;
  std::optional<Geometry> geometry;
};
absl::Status ReadFetchDescription(absl::string_view text, FetchDescription& description);
absl::StatusOr<Geometry> GeometryFrom(const nlohmann::json& value);
// What a read says of a sample: {"status": "OK", "message", "committed_rows", "revision", "content_id",
// "unrecorded": [[b, e]], "weights": [[b, e, version, label]]}, and num_tokens where it is known.
nlohmann::json ToJson(const SampleRecord& record);

// The fetch reads these slices of its plan next; what it staged before is gone.
void StartReading(rrt_fetch& fetch, std::vector<int32_t> slices);

}  // namespace routing_replay::capi

#endif  // TRAINER_PLUGIN_CAPI_OBJECTS_H_
