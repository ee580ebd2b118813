// Keeps the processes of the quick start in step, so that one hop is measured at a time.
//
// A child prints the name of each phase that it finished on standard output and waits for "go" on standard input. Its
// last line is its result, one JSON object.
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

// Called in a child. UNAVAILABLE if the parent has exited.
absl::Status FinishPhase(absl::string_view phase);
void WriteResult(const nlohmann::json& result);

// Called in the parent: waits until every child has finished `phase`.
absl::Status AwaitPhase(const Children& children, absl::string_view phase);
// Releases all children and waits until each has finished `phase`. Returns the wall time.
absl::StatusOr<std::chrono::nanoseconds> RunPhase(const Children& children, absl::string_view phase);
// Releases all children, reads their results and waits for them to exit.
absl::StatusOr<std::vector<nlohmann::json>> CollectResults(const Children& children);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_PHASE_GATE_H_
