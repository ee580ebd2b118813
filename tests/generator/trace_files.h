// Reads a directory of recorded routing traces: one [tokens, layers, top_k] u8 .npy file per model, and an index.json
// {"<file stem>": {"shape": [...], "seq_lens": [...], "experts": E, "topk": K}} that has the lengths of the sequences.
#ifndef TESTS_GENERATOR_TRACE_FILES_H_
#define TESTS_GENERATOR_TRACE_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/generator/routes.h"

namespace routing_replay::testing {

struct RoutingTrace {
  std::string name;               // The file name without its extension.
  std::vector<Routes> sequences;  // All have the same shape; in file order.
};

// Returns all traces of the directory, sorted by name. Returns NOT_FOUND if there is no index.json, and
// INVALID_ARGUMENT with the name of the file for any other error.
absl::StatusOr<std::vector<RoutingTrace>> ReadTraceDirectory(const std::string& directory);

}  // namespace routing_replay::testing

#endif  // TESTS_GENERATOR_TRACE_FILES_H_
