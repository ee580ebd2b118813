// The objects behind the opaque types of capi.h, and conversions of values for its functions.
#ifndef TRAINER_PLUGIN_CAPI_OBJECTS_H_
#define TRAINER_PLUGIN_CAPI_OBJECTS_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/c_api/result.h"
#include "client/c_api/values.h"
#include "routing_replay/trainer/capi.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/source.h"
#include "trainer_plugin/fetch/staging_sink.h"
#include "trainer_plugin/fetch/step_cache.h"
#include "trainer_plugin/layout/plan_json.h"

struct rrt_plan final : routing_replay::c_api::Object {
  rrt_plan(routing_replay::trainer::DescribedPlan plan, routing_replay::trainer::BufferLayout buffer)
      : described(std::move(plan)),
        layout(std::move(buffer)),
        row_map(ExpandRowMap(described.plan.row_map)),
        shown(row_map),
        last_rows(described.last_rows()) {}

  const routing_replay::trainer::DescribedPlan described;
  const routing_replay::trainer::BufferLayout layout;
  // Shared by all fetches of the plan.
  const std::vector<routing_replay::trainer::LocalRow> row_map;
  const routing_replay::trainer::ShownRows shown;
  const std::vector<int64_t> last_rows;
};

// The members refer to each other, so a fetch must not be moved.
struct rrt_fetch final : routing_replay::c_api::Object {
  explicit rrt_fetch(const rrt_plan& of) : plan(of) {}

  // Selects the slices of the plan for the next read, and discards what was staged before.
  void Ask(std::vector<int32_t> next);
  // Makes the sink for the next read.
  routing_replay::trainer::StagingSink& NewSink();

  const rrt_plan& plan;
  std::vector<routing_replay::trainer::FetchSequence> sequences;
  routing_replay::trainer::FetchOptions options;
  std::vector<int32_t> slices;                         // The slices that are being read.
  routing_replay::trainer::FetchOptions read_options;  // The options of the read in progress.
  routing_replay::trainer::StagedRows staged;
  std::unique_ptr<routing_replay::trainer::CachedFetch> cached;  // Set if the fetch is attached to a cache.
  std::unique_ptr<routing_replay::trainer::StagingSink> sink;
  bool ended = false;
};

namespace routing_replay::capi {

using c_api::Result;
using c_api::View;

// Runs the body of every function that can fail. A fork in another thread does not wait for the end of the body, as it
// does with Guard of client/c_api.
template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  return c_api::NewError(c_api::WithoutExceptions(std::forward<Body>(body)));
}

inline const rr_bytes* NewBytes(absl::string_view text) {
  Result<rr_bytes> bytes;
  *bytes = {bytes.Copy(absl::MakeConstSpan(text.data(), text.size())), text.size()};
  return bytes.Release();
}

inline absl::Span<const uint8_t> Bytes(const void* data, size_t size) {
  return {static_cast<const uint8_t*>(data), size};
}

// Converts the options of a fetch or an inspection.
absl::StatusOr<trainer::FetchOptions> OptionsFrom(const rrt_fetch_options& options);
std::vector<trainer::FetchSequence> SequencesFrom(const rrt_fetch_options& options);
// Like SequencesFrom, but returns the sequences of the plan if `options` names none.
std::vector<trainer::FetchSequence> SequencesOf(const rrt_plan& plan, const rrt_fetch_options& options);
absl::StatusOr<std::unique_ptr<rrt_fetch>> NewFetch(const rrt_plan& plan, const rrt_fetch_options& options);
// Converts the records of an inspection, one per sequence; with `plan`, those of a fetch, one per slice.
rrt_records* NewRecords(absl::Span<const SampleRecord> records, absl::Span<const trainer::FetchSequence> sequences,
                        const trainer::ReplayPlan* plan = nullptr);
rrt_records* NewRecords(const rrt_plan& plan, absl::Span<const trainer::FetchSequence> sequences,
                        const trainer::FetchedSamples& samples, const trainer::RowCounts& counts);

}  // namespace routing_replay::capi

#endif  // TRAINER_PLUGIN_CAPI_OBJECTS_H_
