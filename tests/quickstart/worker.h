// A rollout worker: holds what its engine produced for every kWorkers-th sample and appends it through the client.
#ifndef TESTS_QUICKSTART_WORKER_H_
#define TESTS_QUICKSTART_WORKER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/quickstart/scenario.h"

namespace routing_replay::quickstart {

// Runs the phases "ready" (the engine holds its arrays) and "appended" (every row is acknowledged), then prints a
// WorkerResult.
absl::Status RunWorker(const std::vector<Play>& plays, const std::string& endpoint, int32_t worker);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_WORKER_H_
