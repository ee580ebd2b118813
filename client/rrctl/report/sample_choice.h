// Which samples of a big run are read.
#ifndef CLIENT_RRCTL_REPORT_SAMPLE_CHOICE_H_
#define CLIENT_RRCTL_REPORT_SAMPLE_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::client {

// Positions, ascending, of `count` of the samples with these handles, or of all if they are no more. By chance, but the
// same for the same handles and seed on every machine and in every order, and those for a smaller count are among them.
std::vector<size_t> ChooseSamples(absl::Span<const int64_t> handles, size_t count, uint64_t seed);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_SAMPLE_CHOICE_H_
