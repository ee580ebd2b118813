#include "tests/quickstart/worker.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/client.h"
#include "tests/quickstart/engine_payload.h"
#include "tests/quickstart/phase_gate.h"
#include "tests/quickstart/results.h"

namespace routing_replay::quickstart {
namespace {

constexpr int64_t kWeightVersion = 17;
constexpr std::chrono::seconds kFlushTimeout(60);

// One turn of one sample, as its engine holds it.
struct HeldTurn {
  const SamplePlan* sample = nullptr;
  RowRange rows;
  std::vector<RowRange> unrecorded;
  std::vector<uint32_t> tokens;  // Positions 0 … rows.end - 1.
  EnginePayload payload;

  bool last() const { return rows.end == sample->rows(); }
};

// All turns of one worker and one run; element n holds the n-th turn of each sample.
struct HeldPlay {
  const Play* play = nullptr;
  std::vector<std::vector<HeldTurn>> turns;
};

HeldTurn HoldTurn(const SamplePlan& sample, const testing::GeneratedSample& truth, RowRange rows,
                  WorkerResult& result) {
  HeldTurn turn{.sample = &sample, .rows = rows, .unrecorded = Clip(sample.unrecorded, rows)};
  const std::vector<RowRange> recorded = Subtract(rows, turn.unrecorded);
  turn.tokens.assign(truth.tokens.begin(), truth.tokens.begin() + rows.end);
  turn.payload = MakeEnginePayload(sample.form, truth.routes, recorded);
  const int64_t recorded_rows = TotalRows(recorded);
  result.rows += rows.size();
  result.recorded_rows += recorded_rows;
  result.engine_bytes += static_cast<int64_t>(turn.payload.bytes.size());
  result.json_bytes += JsonListBytes(truth.routes, recorded);
  result.base64_bytes += Base64Int32Bytes(truth.routes, recorded);
  result.int32_bytes += recorded_rows * truth.routes.layers * truth.routes.top_k * int64_t{sizeof(int32_t)};
  return turn;
}

HeldPlay HoldPlay(const Play& play, int32_t worker, WorkerResult& result) {
  HeldPlay held{&play, {}};
  for (size_t i = worker; i < play.samples.size(); i += kWorkers) {
    const SamplePlan& sample = play.samples[i];
    held.turns.resize(std::max(held.turns.size(), sample.turns.size()));
    for (size_t turn = 0; turn < sample.turns.size(); ++turn) {
      held.turns[turn].push_back(HoldTurn(sample, play.truth[i], sample.turns[turn], result));
    }
    ++result.samples;
  }
  return held;
}

// Where the sample continues: the server's count of committed rows, or 0 for an unknown sample.
absl::StatusOr<int64_t> CommittedRows(Run& run, const HeldTurn& turn) {
  if (turn.rows.begin == 0) return 0;
  const absl::StatusOr<SampleState> state = run.Stat(turn.sample->id);
  if (!state.ok()) return state.status();
  return state->committed_rows;
}

absl::Status AppendTurn(Run& run, Appender& appender, const HeldTurn& turn) {
  const absl::StatusOr<int64_t> row_start = CommittedRows(run, turn);
  if (!row_start.ok()) return row_start.status();
  if (*row_start != turn.rows.begin) {
    return absl::InternalError(
        absl::StrCat(turn.sample->id, ": ", *row_start, " rows are committed, not ", turn.rows.begin));
  }
  AppendOptions options{.sample = turn.sample->id,
                        .row_start = *row_start,
                        .unrecorded = turn.unrecorded,
                        .group = 1,
                        .weight_version = kWeightVersion,
                        .token_ids = turn.tokens};
  if (turn.last()) options.seal_num_tokens = turn.sample->num_tokens;
  return appender.Append(options, turn.payload.tensor, turn.payload.span());
}

absl::Status AppendPlay(Client& client, const HeldPlay& held, WorkerResult& result) {
  const absl::StatusOr<std::shared_ptr<Run>> run = client.OpenRun(held.play->run, held.play->geometry);
  if (!run.ok()) return run.status();
  const std::unique_ptr<Appender> appender = (*run)->NewAppender();
  for (const std::vector<HeldTurn>& turns : held.turns) {
    for (const HeldTurn& turn : turns) {
      if (absl::Status status = AppendTurn(**run, *appender, turn); !status.ok()) return status;
    }
    if (absl::Status status = appender->Flush(kFlushTimeout); !status.ok()) return status;
  }
  result.sent_bytes += appender->metrics().payload_bytes;
  return absl::OkStatus();
}

}  // namespace

absl::Status RunWorker(const std::vector<Play>& plays, const std::string& endpoint, int32_t worker) {
  WorkerResult result;
  std::vector<HeldPlay> held;
  for (const Play& play : plays) held.push_back(HoldPlay(play, worker, result));
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect({.endpoint = endpoint});
  if (!client.ok()) return client.status();
  if (absl::Status status = FinishPhase("ready"); !status.ok()) return status;
  for (const HeldPlay& play : held) {
    if (absl::Status status = AppendPlay(**client, play, result); !status.ok()) return status;
  }
  if (absl::Status status = FinishPhase("appended"); !status.ok()) return status;
  WriteResult(result);
  return absl::OkStatus();
}

}  // namespace routing_replay::quickstart
