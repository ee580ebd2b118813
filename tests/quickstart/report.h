// The closing table of the quick start, as text and as JSON.
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
  std::string key;   // The key in JSON.
  std::string text;  // The text in the table.
  std::chrono::nanoseconds time{0};
};

struct Report {
  std::vector<std::string> runs;  // One description per run.
  WorkerResult in;                // Sums over the workers.
  RankResult out;                 // Sums over the ranks.
  int32_t ranks = 0;
  int64_t expected_ids = 0;  // All recorded ids: the ranks together must compare each once.
  std::vector<Hop> hops;
};

// Adds up the results of the processes. INTERNAL if a result is incomplete.
absl::Status AddWorker(const nlohmann::json& result, Report& report);
absl::Status AddRank(const nlohmann::json& result, Report& report);

std::string ReportTable(const Report& report);
nlohmann::json ReportJson(const Report& report);

// INTERNAL unless the ranks compared every recorded id. (A rank that finds a difference has already failed.)
absl::Status CheckComplete(const Report& report);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_REPORT_H_
