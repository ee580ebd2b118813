// How the processes of the quick start keep step, so that one hop is measured at a time.
//
// A child announces each finished phase by its name on standard output and waits for "go" on standard input; its last
// line is its result, one JSON object.
#ifndef TESTS_QUICKSTART_PHASE_GATE_H_
#define TESTS_QUICKSTART_PHASE_GATE_H_

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/quickstart/process.h"

namespace routing_replay::quickstart {

using Children = std::vector<std::unique_ptr<ChildProcess>>;

inline constexpr std::chrono::seconds kPhaseTimeout(120);

// In a child. UNAVAILABLE if the parent is gone.
absl::Status FinishPhase(absl::string_view phase);
void WriteResult(const nlohmann::json& result);

// In the parent: waits until every child has finished `phase`.
absl::Status AwaitPhase(const Children& children, absl::string_view phase);
// Lets all children go on and waits until every one has finished `phase`. Returns the wall time.
absl::StatusOr<std::chrono::nanoseconds> RunPhase(const Children& children, absl::string_view phase);
// Lets all children go on, reads their results and waits for their end.
absl::StatusOr<std::vector<nlohmann::json>> CollectResults(const Children& children);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_PHASE_GATE_H_
