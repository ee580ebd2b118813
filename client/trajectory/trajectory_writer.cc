#include "client/trajectory/trajectory_writer.h"

#include <utility>

#include "client/call/cancellation.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {
namespace {

constexpr int kTruncateAttempts = 3;

// Returns true if it is unknown whether the truncation happened.
bool IsUncertain(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsFailedPrecondition(status) ||
         absl::IsOutOfRange(status);
}

}  // namespace

// Passes outcomes from the appender to the trajectory, which may be destroyed by then. Thread-safe.
class TrajectoryWriter::Mailbox {
 public:
  void Put(const AppendOutcome& outcome) {
    MutexLock lock(mutex_);
    outcomes_.push_back(outcome);
  }
  std::vector<AppendOutcome> Take() {
    MutexLock lock(mutex_);
    return std::exchange(outcomes_, {});
  }

 private:
  Mutex mutex_;
  std::vector<AppendOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<TrajectoryWriter>> TrajectoryWriter::New(std::shared_ptr<Run> run,
                                                                        std::shared_ptr<Appender> appender,
                                                                        Options options) {
  RR_RETURN_IF_ERROR(CheckId(options.trajectory.sample, "sample"));
  options.trajectory.strict = run->settings().strict;
  AppendOptions common{.group = options.group};
  return std::unique_ptr<TrajectoryWriter>(new TrajectoryWriter(std::move(run), std::move(appender), std::move(common),
                                                                Trajectory(std::move(options.trajectory))));
}

TrajectoryWriter::TrajectoryWriter(std::shared_ptr<Run> run, std::shared_ptr<Appender> appender, AppendOptions common,
                                   Trajectory trajectory)
    : run_(std::move(run)),
      appender_(std::move(appender)),
      common_(std::move(common)),
      sample_(trajectory.sample()),
      mailbox_(std::make_shared<Mailbox>()),
      trajectory_(std::move(trajectory)) {}

bool TrajectoryWriter::Drain() {
  bool failed = false;
  for (const AppendOutcome& outcome : mailbox_->Take()) {
    failed = failed || !outcome.status.ok();
    trajectory_.OnOutcome(outcome);
  }
  return failed;
}

absl::StatusOr<TurnResult> TrajectoryWriter::Add(const Turn& turn, const TurnRows* rows, absl::string_view engine,
                                                 Place place) {
  if (!place) place = order_.Take();
  RR_RETURN_IF_ERROR(place->Await());
  AppendOptions common = common_;
  common.engine = std::string(engine);
  return Do(turn, rows, common);
}

absl::StatusOr<TurnResult> TrajectoryWriter::Do(const Turn& turn, const TurnRows* rows, const AppendOptions& common) {
  int64_t truncated_rows = 0;
  std::optional<int64_t> rows_before;  // Number of rows before any were removed.
  int attempts = 0;
  while (true) {
    RR_ASSIGN_OR_RETURN(auto plan, Plan(turn, rows, common));
    const TurnDecision& decision = plan.decision;
    if (decision.step == TurnDecision::Step::kAppend) {
      auto result = Queue(std::move(plan));
      if (result.ok()) result->truncated_rows = truncated_rows;
      return result;
    }
    RR_ASSIGN_OR_RETURN(const auto failed, Settle());
    absl::Status status;
    if (decision.step == TurnDecision::Step::kAsk) {
      status = Ask();
    } else if (!failed) {
      if (!rows_before) rows_before = state().rows;
      status = Truncate(decision, ++attempts);
      truncated_rows = *rows_before - decision.truncate_rows;
    }
    if (!status.ok()) return status;
  }
}

absl::StatusOr<TurnPlan> TrajectoryWriter::Plan(const Turn& turn, const TurnRows* rows, const AppendOptions& common) {
  MutexLock lock(mutex_);
  Drain();
  return PlanTurn(turn, rows, common, run_->geometry(), appender().blocks(), trajectory_);
}

absl::StatusOr<bool> TrajectoryWriter::Settle() {
  uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    last = last_sequence_;
  }
  RR_RETURN_IF_ERROR(appender().SettleUpTo(last, appender().settle_time()));
  MutexLock lock(mutex_);
  return Drain();
}

absl::Status TrajectoryWriter::Ask() {
  RR_ASSIGN_OR_RETURN(auto states, run_->StatMany({&sample_, 1}));
  std::optional<SampleState> found;
  if (!states.empty()) found = std::move(states.front());
  MutexLock lock(mutex_);
  return trajectory_.OnState(found);
}

absl::Status TrajectoryWriter::Truncate(const TurnDecision& decision, int attempt) {
  const auto truncated =
      run_->Truncate(sample_, Producer::kRollout, decision.truncate_rows, decision.expected_revision);
  MutexLock lock(mutex_);
  if (truncated.ok()) {
    trajectory_.OnTruncated(*truncated);
    return absl::OkStatus();
  }
  trajectory_.OnTruncateFailed();
  const bool again = attempt < kTruncateAttempts && IsUncertain(truncated.status());
  return again ? absl::OkStatus() : truncated.status();
}

absl::StatusOr<TurnResult> TrajectoryWriter::Queue(TurnPlan plan) {
  RR_RETURN_IF_ERROR(KeepCall());
  TurnResult result{.decision = std::move(plan.decision)};
  for (AppendPlan& append : plan.appends) {
    const RowRange rows{append.pieces.front().header.rows.begin, append.pieces.back().header.rows.end};
    result.appended.push_back(rows);
    for (const AppendPiece& piece : append.pieces) result.unrecorded_rows += TotalRows(piece.header.unrecorded);
    append.note = [mailbox = mailbox_](const AppendOutcome& outcome) { mailbox->Put(outcome); };
    const auto queued = appender().Enqueue(append, /*may_wait=*/true);
    MutexLock lock(mutex_);
    if (!queued.ok()) {  // The next turn asks the server what is missing.
      trajectory_.OnOutcome({.sample = sample_, .status = queued.status()});
      return queued.status();
    }
    last_sequence_ = (*queued)->sequence;
    if (!(*queued)->dropped) continue;
    trajectory_.OnDropped(rows);
    result.dropped_rows += rows.size();
  }
  return result;
}

absl::StatusOr<std::unique_ptr<TrajectoryWriter>> TrajectoryWriter::Fork(const std::string& sample,
                                                                         std::chrono::milliseconds wait, Place place) {
  RR_RETURN_IF_ERROR(CheckId(sample, "sample"));
  if (!place) place = order_.Take();
  RR_RETURN_IF_ERROR(place->Await());
  uint64_t last = 0;
  {
    MutexLock lock(mutex_);
    Drain();
    if (trajectory_.rows() != trajectory_.acknowledged_rows()) last = last_sequence_;
  }
  // If rows are not acknowledged in time, fewer rows are shared.
  if (wait.count() > 0 && last > 0) {
    const absl::Status settled = appender().SettleUpTo(last, wait);
    if (absl::Status call = CheckCall(); absl::IsCancelled(settled) && !call.ok()) return call;
  }
  MutexLock lock(mutex_);
  Drain();
  return std::unique_ptr<TrajectoryWriter>(new TrajectoryWriter(run_, appender_, common_, trajectory_.Fork(sample)));
}

int64_t TrajectoryWriter::NextRow(absl::Span<const uint32_t> tokens) {
  MutexLock lock(mutex_);
  Drain();
  return trajectory_.NextRow(tokens);
}

TrajectoryWriter::State TrajectoryWriter::state() {
  MutexLock lock(mutex_);
  Drain();
  return {.num_tokens = trajectory_.num_tokens(), .rows = trajectory_.rows(), .sealed = trajectory_.sealed()};
}

}  // namespace routing_replay::client
