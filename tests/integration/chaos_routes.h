// The sample that killed workers and their test both compute from a seed.
#ifndef TESTS_INTEGRATION_CHAOS_ROUTES_H_
#define TESTS_INTEGRATION_CHAOS_ROUTES_H_

#include <string>

#include "routing_replay/client.h"
#include "tests/support/random_routes.h"

namespace routing_replay::testing {

inline Geometry ChaosGeometry() { return Geometry::Uniform(8, 128, 8); }

// Appends the rows of the sample that are not yet committed, in steps of 40 rows with a Flush after each, and seals the
// sample.
inline absl::Status AppendSample(const std::string& endpoint, const std::string& run_name, const std::string& sample,
                                 int64_t rows, uint64_t seed) {
  const Geometry geometry = ChaosGeometry();
  const RandomRoutes routes = MakeRandomRoutes(geometry, rows, seed);
  const std::vector<uint32_t> tokens = MakeTokens(rows + 1, seed);
  auto client = Client::Connect({.endpoint = endpoint});
  if (!client.ok()) return client.status();
  auto run = (*client)->OpenRun(run_name, geometry);
  if (!run.ok()) return run.status();
  const auto state = (*run)->Stat(sample);
  const auto appender = (*run)->NewAppender();
  for (int64_t begin = state.ok() ? state->committed_rows : 0; begin < rows;) {
    const int64_t end = std::min<int64_t>(rows, begin + 40);
    AppendOptions options{.sample = sample, .row_start = begin, .token_ids = tokens};
    if (end == rows) options.seal_num_tokens = rows + 1;
    const std::vector<int32_t> tensor = routes.Tensor({begin, end});
    const TensorDescription description{.dtype = DType::kI32, .shape = {end - begin, 8, 8}};
    absl::Status status = appender->Append(options, description, AsBytes(tensor));
    if (status.ok()) status = appender->Flush(std::chrono::seconds(30));
    if (!status.ok()) return status;
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::testing

#endif  // TESTS_INTEGRATION_CHAOS_ROUTES_H_
