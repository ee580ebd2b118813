// A trainer rank: reads its layers and rows of every micro-batch, realigns them, runs router replay and checks the
// results.
#ifndef TESTS_QUICKSTART_RANK_H_
#define TESTS_QUICKSTART_RANK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/quickstart/scenario.h"

namespace routing_replay::quickstart {

inline constexpr int32_t kRanks = 8;
inline constexpr char kLayoutDescription[] = "tp2 cp2 pp2, sequence parallel, zigzag per document, packed";

// Runs the phases "ready", "fetched" (every slice is staged), "realigned" (all index buffers are final) and "checked",
// then prints a RankResult. INTERNAL names the first difference.
absl::Status RunRank(const std::vector<Play>& plays, const std::string& endpoint, int32_t rank);

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_RANK_H_
