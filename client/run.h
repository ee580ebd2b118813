// One run over a channel.
#ifndef CLIENT_RUN_H_
#define CLIENT_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/appender/append_plan.h"
#include "client/caller.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Makes or joins a run: `request` with geometry makes it, without joins.
absl::StatusOr<std::shared_ptr<Run>> OpenRunWith(std::shared_ptr<const Caller> caller, v1::OpenRunRequest request);

// The two halves of it: what the server says of the run, and the run over a channel.
struct OpenedRun {
  Geometry geometry;
  RunSettings settings;
  ServerLimits limits;
  ReleaseOutcome dropped;
  // Sequence numbers of its appenders: those of several servers are of one appender.
  uint64_t first_sequence = 1, sequence_step = 1;
};
absl::StatusOr<OpenedRun> CallOpenRun(const Caller& caller, v1::OpenRunRequest request);
std::shared_ptr<Run> MakeRun(std::shared_ptr<const Caller> caller, std::string name, const OpenedRun& opened);

// Makes the run or joins it, as Client::OpenRun.
v1::OpenRunRequest MakeOpenRun(absl::string_view run, const Geometry& geometry, const RunSettings& settings,
                               std::optional<int64_t> resume_at);
// As Client::JoinRun.
v1::OpenRunRequest MakeJoinRun(absl::string_view run);

// Settings as a message, and back.
v1::RunOptions ToProto(const RunSettings& settings);
absl::StatusOr<RunSettings> FromProto(const v1::RunOptions& options);

// As Client::ListRuns and Client::GetServerInfo.
absl::StatusOr<std::vector<RunSummary>> CallListRuns(const Caller& caller);
absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller);

}  // namespace routing_replay::client

#endif  // CLIENT_RUN_H_
