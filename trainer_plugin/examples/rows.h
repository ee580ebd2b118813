// Samples, and how to fetch their rows.
#ifndef ROWS_H_
#define ROWS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/geometry.h"

struct Rows {
  routing_replay::Geometry geometry;
  std::vector<routing_replay::trainer::FetchSequence> samples;  // With num_tokens.
  std::function<absl::StatusOr<routing_replay::trainer::StagedRows>(
      const routing_replay::trainer::ReplayPlan&, const std::vector<routing_replay::trainer::FetchSequence>&)>
      fetch;
};

// Samples of a run of a server.
absl::StatusOr<Rows> ServiceRows(const std::string& endpoint, const std::string& run,
                                 const std::vector<std::string>& samples);

#endif  // ROWS_H_
