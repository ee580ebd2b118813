// The results that the processes report to the quick start as JSON lines.
#ifndef TESTS_QUICKSTART_RESULTS_H_
#define TESTS_QUICKSTART_RESULTS_H_

#include <cstdint>
#include <nlohmann/json.hpp>

namespace routing_replay::quickstart {

// Payload bytes, without framing.
struct WorkerResult {
  int64_t samples = 0;
  int64_t rows = 0;  // Unrecorded rows counted.
  int64_t recorded_rows = 0;
  int64_t engine_bytes = 0;  // Handed over by the engines.
  int64_t sent_bytes = 0;    // Sent to the server.
  int64_t json_bytes = 0;    // The same rows as a JSON list.
  int64_t base64_bytes = 0;  // The same rows as base64 of int32.
  int64_t int32_bytes = 0;   // The same rows as int32.
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WorkerResult, samples, rows, recorded_rows, engine_bytes, sent_bytes, json_bytes,
                                   base64_bytes, int32_bytes)

struct RankResult {
  int64_t micro_batches = 0;
  int64_t received_bytes = 0;  // Payload bytes from the server.
  // Numbers of local rows, by state. Every row of a micro-batch is on one rank of each pipeline stage.
  int64_t replayed_rows = 0;
  int64_t unrecorded_rows = 0;
  int64_t pad_rows = 0;
  int64_t compared_ids = 0;  // Ids of index buffers, compared with the reference.
  int64_t router_rows = 0;   // Rows with a checked routing map, summed over the checked layers.
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankResult, micro_batches, received_bytes, replayed_rows, unrecorded_rows, pad_rows,
                                   compared_ids, router_rows)

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_RESULTS_H_
