// The objects behind the opaque types of c_api.h. Calls in progress keep their contents alive.
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

// State that calls in progress share with the object on which they were made.
template <typename T>
class SharedObject : public GatedObject {
 public:
  explicit SharedObject(std::shared_ptr<T> object) : shared(std::move(object)) {}

  const std::shared_ptr<T> shared;
};

// A run, and the appenders that the C functions made from it. Thread-safe.
class SharedRun {
 public:
  explicit SharedRun(std::shared_ptr<Run> shared) : run(std::move(shared)) {}

  void Add(const std::shared_ptr<Appender>& appender);
  // The appenders that have not been freed.
  std::vector<std::shared_ptr<Appender>> Appenders();

  const std::shared_ptr<Run> run;

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<Appender>> appenders_ ABSL_GUARDED_BY(mutex_);
};

// Keeps the outcomes of an appender until rr_appender_outcomes takes them. Thread-safe. A forked child starts with
// none: the outcomes belong to the parent.
class KeptOutcomes final : private client::ForkPart {
 public:
  void Put(const AppendOutcome& outcome);
  // Marks the outcomes of the previous Take as seen, and waits for new ones. Returns an empty list when the appender is
  // closed and all outcomes were taken. Errors: DEADLINE_EXCEEDED, CANCELLED.
  absl::StatusOr<std::vector<AppendOutcome>> Take(Clock::Time deadline);
  // Waits until all outcomes are marked as seen. Errors as Take.
  absl::Status AwaitSeen(Clock::Time deadline);
  // Says that no more outcomes will come.
  void Close();

 private:
  void BeginAnew() override;
  // Waits until `done` returns true.
  template <typename Done>
  absl::Status Await(Clock::Time deadline, const Done& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;  // The outcomes of the last Take are not marked as seen yet.
  std::vector<AppendOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
};

struct SharedAppender {
  std::shared_ptr<Run> run;
  std::shared_ptr<KeptOutcomes> kept;  // Null: outcomes are not kept.
  std::shared_ptr<Appender> appender;
  // The order of the asynchronous appends (rr_call::queue) that are not in the appender yet.
  client::CallOrder order;
  // Held by a call from taking its place in `order` until it has a thread, so that threads start in this order.
  // Otherwise calls that wait for their turn could occupy all threads, and the call whose turn it is have none.
  Mutex calling;
};

struct SharedTrajectory {
  // FAILED_PRECONDITION in the child of a fork, because the trajectory's appends belong to the parent.
  absl::Status CheckProcess() const {
    if (generation == Gate::Shared().generation()) return absl::OkStatus();
    return absl::FailedPreconditionError("the trajectory belongs to the parent process; begin a new one here");
  }

  const uint64_t generation = Gate::Shared().generation();
  std::shared_ptr<SharedAppender> appender;
  std::unique_ptr<client::TrajectoryWriter> writer;
  Mutex calling;  // Held while a turn takes its place in the order; see SharedAppender::calling.
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
