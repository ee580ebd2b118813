// Time, CPU and memory of one way of the hand-off in each round.
#ifndef TESTS_BENCH_HANDOFF_ROUNDS_H_
#define TESTS_BENCH_HANDOFF_ROUNDS_H_

#include <string>
#include <vector>

#include "tests/bench/common/figure.h"

namespace routing_replay::bench {

struct Round {
  double ingest_s = 0;  // Ingest: until the server or hub has everything.
  double fetch_s = 0;   // Fetch: from there until every rank holds its array.
  double cpu_s = 0;     // Summed over all processes of the way that is measured.
  double peak_mb = 0;   // Peak resident memory above what the processes had before the round, summed.
  double moved = 0;     // Bytes on the network over bytes needed; 0 if unknown.

  double wall_s() const { return ingest_s + fetch_s; }
};

std::vector<Figure> HandoffFigures(const std::string& name, const std::vector<Round>& rounds,
                                   const std::string& floor_name, const std::vector<Round>& floor);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_ROUNDS_H_
