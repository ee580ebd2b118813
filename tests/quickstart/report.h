// The closing table of the quick start, for people and as JSON.
#ifndef TESTS_QUICKSTART_REPORT_H_
#define TESTS_QUICKSTART_REPORT_H_

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/quickstart/results.h"
#include "tests/quickstart/scenario.h"

namespace routing_replay::quickstart {

struct Hop {
  std::string key;   // In the JSON form.
  std::string text;  // In the table.
  std::chrono::nanoseconds time{0};
};

struct Report {
  std::vector<std::string> runs;  // One description each.
  WorkerResult in;                // Sums over the workers.
  RankResult out;                 // Sums over the ranks.
  int32_t ranks = 0;
  int64_t expected_ids = 0;  // What the ranks together have to compare: every recorded id once.
  std::vector<Hop> hops;
};

// Adds up the results of the processes. INTERNAL if one of them is incomplete.
absl::Status AddWorker(const nlohmann::json& result, Report& report);
absl::Status AddRank(const nlohmann::json& result, Report& report);

std::string ReportTable(const Report& report);
nlohmann::json ReportJson(const Report& report);

// INTERNAL unless the ranks compared every recorded id; a difference ends a rank before it comes to this.
absl::Status CheckComplete(const Report& report);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_REPORT_H_
