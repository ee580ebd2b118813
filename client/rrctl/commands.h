// The commands of rrctl. Each talks to one server through the public client and gives back what to print.
#ifndef CLIENT_RRCTL_COMMANDS_H_
#define CLIENT_RRCTL_COMMANDS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"

namespace routing_replay {

// One object per line of the table.
using Rows = std::vector<nlohmann::ordered_json>;

absl::StatusOr<Rows> StatusCommand(Client& client);
absl::StatusOr<Rows> RunsCommand(Client& client);
absl::StatusOr<Rows> ListCommand(Client& client, const std::string& run, Producer producer);
absl::StatusOr<Rows> StatCommand(Client& client, const std::string& run, const std::vector<std::string>& samples,
                                 Producer producer);

struct GetOptions {
  std::string run;
  std::string sample;
  Producer producer = Producer::kRollout;
  std::vector<int32_t> layers;   // Global decoder layer ids; empty: all.
  std::optional<RowRange> rows;  // Absent: all.
};
// One object per (row, layer): the expert ids.
absl::StatusOr<Rows> GetCommand(Client& client, const GetOptions& options);

struct PutOptions {
  std::string run;
  std::string sample;
  std::string file;                  // .npy [rows, layers, K]
  int32_t num_experts = 0;           // To make the run where it does not exist; else 0.
  std::vector<int32_t> moe_layers;   // Likewise; empty: the file's layer axis is layers 0, 1, ….
  std::optional<int64_t> row_start;  // Absent: behind the committed rows.
  std::optional<int64_t> group;
  bool seal = false;
};
absl::StatusOr<Rows> PutCommand(Client& client, const PutOptions& options);

// Without samples: the whole run.
absl::StatusOr<Rows> RemoveCommand(Client& client, const std::string& run, const std::vector<std::string>& samples);

// "3:17" → rows [3, 17); "5" → row 5.
absl::StatusOr<RowRange> ParseRows(absl::string_view text);

}  // namespace routing_replay

#endif  // CLIENT_RRCTL_COMMANDS_H_
