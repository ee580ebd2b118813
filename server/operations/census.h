// What is stored, by run and weight version: counted by going over the samples, a bounded number of them.
#ifndef SERVER_OPERATIONS_CENSUS_H_
#define SERVER_OPERATIONS_CENSUS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct Census {
  struct Share {
    int64_t samples = 0;  // With rows of this version; one of several versions counts in each.
    int64_t rows = 0;
    int64_t bytes = 0;  // A sample's bytes in proportion to its rows.
  };
  struct Run {
    std::string run;
    int64_t samples = 0;  // These are of the run as a whole …
    int64_t sealed_samples = 0;
    int64_t committed_rows = 0;
    int64_t stored_bytes = 0;
    int64_t looked_at = 0;  // … and these of so many samples.
    std::map<int64_t, Share> by_version;
  };
  std::vector<Run> runs;        // By name.
  int64_t oldest_idle_ms = -1;  // Of the samples that were looked at; -1: there are none.
  int64_t samples = 0;          // In the store …
  int64_t looked_at = 0;        // … and looked at here.
};

// Looks at `limit` samples at most, the same number of each run, the first ones by id. Errors as the store's; CANCELLED
// soon after `stop` gives true.
absl::StatusOr<Census> TakeCensus(Store& store, int64_t limit, const std::function<bool()>& stop);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_CENSUS_H_
