// Where the rows of a sample came from, as lists that cover [0, committed rows) and whose neighbours differ.
#ifndef SERVER_STORE_PROVENANCE_H_
#define SERVER_STORE_PROVENANCE_H_

#include <cstdint>
#include <vector>

#include "routing_replay/wire/sample_state.h"

namespace routing_replay::server {

// Whether the two differ in rows and appends at most.
bool SameOrigin(const Provenance& a, const Provenance& b);

// Adds `next`, which starts where the list ends; grows the last entry instead, its appends counted, if it has the
// same origin. No effect if empty.
void AppendProvenance(std::vector<Provenance>& list, Provenance next);

// Keeps rows [0, rows). Appends stay counted.
void TruncateProvenance(std::vector<Provenance>& list, int64_t rows);

// The same rows by their weights alone.
std::vector<WeightSpan> WeightSpansOf(const std::vector<Provenance>& list);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_PROVENANCE_H_
