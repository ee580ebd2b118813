// What is behind the opaque types of c_api.h. What they hold outlives them in calls under way.
#ifndef CLIENT_C_API_OBJECTS_H_
#define CLIENT_C_API_OBJECTS_H_

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

// What calls under way share with the object that they were made on.
template <typename T>
class SharedObject : public GatedObject {
 public:
  explicit SharedObject(std::shared_ptr<T> object) : shared(std::move(object)) {}

  const std::shared_ptr<T> shared;
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
  void Put(const AppendOutcome& outcome);
  // What was taken before has been seen. Waits for more: none once it is closed and all were taken. DEADLINE_EXCEEDED,
  // CANCELLED.
  absl::StatusOr<std::vector<AppendOutcome>> Take(Clock::Time deadline);
  // Waits until all that was put has been seen; the same errors.
  absl::Status AwaitSeen(Clock::Time deadline);
  // No more come.
  void Close();

 private:
  void BeginAnew() override;
  // Waits until `done`.
  template <typename Done>
  absl::Status Await(Clock::Time deadline, const Done& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;  // Some were given that have not been seen.
  std::vector<AppendOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
};

struct SharedAppender {
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

struct rr_client final : routing_replay::c_api::SharedObject<routing_replay::Client> {
  using SharedObject::SharedObject;
};

struct rr_run final : routing_replay::c_api::SharedObject<routing_replay::c_api::SharedRun> {
  using SharedObject::SharedObject;
};

struct rr_appender final : routing_replay::c_api::SharedObject<routing_replay::c_api::SharedAppender> {
  using SharedObject::SharedObject;
};

struct rr_trajectory final : routing_replay::c_api::SharedObject<routing_replay::c_api::SharedTrajectory> {
  using SharedObject::SharedObject;
};

#endif  // CLIENT_C_API_OBJECTS_H_
