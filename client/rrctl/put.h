// The command that appends the rows of a file.
#ifndef CLIENT_RRCTL_PUT_H_
#define CLIENT_RRCTL_PUT_H_

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/table.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

struct PutOptions {
  std::string run;
  std::string sample;
  Producer producer = Producer::kRollout;
  std::string file;    // .npy or safetensors, ids [rows, layers, K]; "-": standard input.
  std::string tensor;  // Its name in a safetensors file; empty: the only one of rows.
  // Of a recorded trace: JSON whose seq_lens say where its sequences end. Each becomes a sample "<sample>/<number>".
  std::string index;
  int32_t num_experts = 0;           // To make the run where it does not exist; else 0.
  std::optional<int32_t> top_k;      // With num_experts; absent: the file's K.
  std::vector<int32_t> moe_layers;   // With num_experts; empty: the file's layer axis is layers 0, 1, ….
  std::optional<int64_t> row_start;  // Absent: behind the committed rows.
  std::optional<int64_t> group;
  bool seal = false;
};

// `input` is read where the file is "-". An object: what the server said of the append, or of all of them.
absl::StatusOr<Document> Put(Client& client, const PutOptions& options, std::istream& input);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_PUT_H_
