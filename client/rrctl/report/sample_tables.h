// What the states of samples tell without their rows: lengths, and rows that are missing.
#ifndef CLIENT_RRCTL_REPORT_SAMPLE_TABLES_H_
#define CLIENT_RRCTL_REPORT_SAMPLE_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/rrctl/table.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::client {

// The parts of a report that are called so; see gather.h.
Document LengthTable(const std::vector<SampleState>& samples);
// The samples that miss most, and how many miss any.
Document MissingTable(const std::vector<SampleState>& samples, int64_t& missing_samples);

// Half-open ranges that hold all groups of the samples: one per group, or neighbours together where they are many.
std::vector<std::pair<int64_t, int64_t>> GroupRanges(const std::vector<SampleState>& samples);
// Which of the ranges has `group`, which one of them does.
size_t RangeOf(const std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t group);
// {"begin", "end", "samples", "rows", "unrecorded_rows", "lost_rows"} of one range each.
Document GroupTable(const std::vector<SampleState>& samples, const std::vector<std::pair<int64_t, int64_t>>& ranges);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_SAMPLE_TABLES_H_
