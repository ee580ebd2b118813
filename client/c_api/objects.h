// What is behind the opaque types of c_api.h. What they hold outlives them in calls under way.
#ifndef CLIENT_C_API_OBJECTS_H_
#define CLIENT_C_API_OBJECTS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c_api/gate.h"
#include "client/call/call_order.h"
#include "client/call/fork_part.h"
#include "client/trajectory/trajectory_writer.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "routing_replay/c_api.h"
#include "routing_replay/client.h"

namespace routing_replay::c_api {

// A client that connects when it is first used: the file of a "file:PATH" is waited for by that call. Thread-safe.
class LazyClient {
 public:
  explicit LazyClient(ClientOptions options) : options_(std::move(options)) {}

  // Without waiting: errors of the options.
  absl::Status TryConnect();
  absl::StatusOr<std::shared_ptr<Client>> Get();

 private:
  const ClientOptions options_;
  Mutex mutex_;
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

// A run, and the appenders that were made of it here. Thread-safe.
class SharedRun {
 public:
  explicit SharedRun(std::shared_ptr<Run> shared) : run(std::move(shared)) {}

  void Add(const std::shared_ptr<Appender>& appender);
  // Those that are there.
  std::vector<std::shared_ptr<Appender>> Appenders();

  const std::shared_ptr<Run> run;

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<Appender>> appenders_ ABSL_GUARDED_BY(mutex_);
};

// Outcomes of an appender, until somebody takes them. Thread-safe. The child of a fork has none.
class KeptOutcomes final : private client::ForkPart {
 public:
  // As AppenderOptions::on_outcomes.
  void Put(std::vector<AppendOutcome> outcomes, std::function<void()> seen);
  // What was taken before has been seen. Waits for more: none once it is closed and all were taken. DEADLINE_EXCEEDED,
  // CANCELLED.
  absl::StatusOr<std::vector<AppendOutcome>> Take(Clock::Time deadline);
  // No more come.
  void Close();
  // Nobody takes any more: what is here, and what comes, has been seen.
  void Dismiss();

 private:
  using Seen = std::vector<std::function<void()>>;

  void BeginAnew() override;

  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool dismissed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<AppendOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  Seen waiting_ ABSL_GUARDED_BY(mutex_);  // Of outcomes_ …
  Seen taken_ ABSL_GUARDED_BY(mutex_);    // … and of those that were given last.
};

struct SharedAppender {
  ~SharedAppender() {
    if (kept) kept->Dismiss();
  }

  std::shared_ptr<Run> run;
  std::shared_ptr<KeptOutcomes> kept;  // Null: nobody takes them.
  std::shared_ptr<Appender> appender;
  // Appends that were called with a queue and are not queued yet.
  client::CallOrder order;
  // Held where a call takes its place in the order and then a thread, so that the first place always has one.
  Mutex calling;
};

struct SharedTrajectory {
  // FAILED_PRECONDITION in a child: its appends are the parent's.
  absl::Status CheckProcess() const {
    if (generation == Gate::Shared().generation()) return absl::OkStatus();
    return absl::FailedPreconditionError("the trajectory is of the process that was forked: begin one in this process");
  }

  const uint64_t generation = Gate::Shared().generation();
  std::shared_ptr<SharedAppender> appender;
  std::unique_ptr<client::TrajectoryWriter> writer;
  Mutex calling;  // As above.
};

}  // namespace routing_replay::c_api

struct rr_client final : routing_replay::c_api::GatedObject {
  explicit rr_client(std::shared_ptr<routing_replay::c_api::LazyClient> shared) : client(std::move(shared)) {}

  const std::shared_ptr<routing_replay::c_api::LazyClient> client;
};

struct rr_run final : routing_replay::c_api::GatedObject {
  explicit rr_run(std::shared_ptr<routing_replay::c_api::SharedRun> shared) : run(std::move(shared)) {}

  const std::shared_ptr<routing_replay::c_api::SharedRun> run;
};

struct rr_appender final : routing_replay::c_api::GatedObject {
  explicit rr_appender(std::shared_ptr<routing_replay::c_api::SharedAppender> shared) : appender(std::move(shared)) {}

  const std::shared_ptr<routing_replay::c_api::SharedAppender> appender;
};

struct rr_trajectory final : routing_replay::c_api::GatedObject {
  explicit rr_trajectory(std::shared_ptr<routing_replay::c_api::SharedTrajectory> shared)
      : trajectory(std::move(shared)) {}

  const std::shared_ptr<routing_replay::c_api::SharedTrajectory> trajectory;
};

#endif  // CLIENT_C_API_OBJECTS_H_
