#include <memory>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/fetch.h"
#include "rows.h"

using namespace routing_replay;
using namespace routing_replay::trainer;

absl::StatusOr<Rows> ServiceRows(const std::string& endpoint, const std::string& run,
                                 const std::vector<std::string>& samples) {
  ClientOptions options;
  options.endpoint = endpoint;
  auto connected = Client::Connect(options);
  if (!connected.ok()) return connected.status();
  auto joined = (*connected)->JoinRun(run);
  if (!joined.ok()) return joined.status();
  const std::shared_ptr<Run> reader = *joined;
  Rows rows{.geometry = reader->geometry()};
  for (const std::string& sample : samples) {
    const auto state = reader->Stat(sample);
    if (!state.ok()) return state.status();
    if (!state->sealed()) return absl::FailedPreconditionError(absl::StrCat(sample, " is not sealed"));
    rows.samples.push_back({.sample = sample, .num_tokens = state->num_tokens});
  }
  rows.fetch = [reader](const ReplayPlan& plan, const std::vector<FetchSequence>& fetched) {
    // This example needs every sample. A program that lets samples fall back would check
    // StagedRows::fallback_sequences.
    return FetchSlices(*reader, plan, fetched, {.missing = MissingPolicy::kStrict});
  };
  return rows;
}
