// What a store that spills has counted, under the names of its metrics.
#ifndef SERVER_OPERATIONS_SPILL_COUNTERS_H_
#define SERVER_OPERATIONS_SPILL_COUNTERS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/store/store.h"

namespace routing_replay::server {

inline std::vector<std::pair<std::string, int64_t>> SpillCounters(const Store::Totals::Spill& spill) {
  return {{"routing_replay_spilled_samples_total", spill.samples},
          {"routing_replay_spilled_bytes_total", spill.bytes},
          {"routing_replay_spill_loads_total", spill.loads},
          {"routing_replay_spill_lost_blocks_total", spill.lost_blocks},
          {"routing_replay_spill_failures_total", spill.write_failures}};
}

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_SPILL_COUNTERS_H_
