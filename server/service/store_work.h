// What a call asks of a store that may wait: done by a worker, while the call's loop goes on with others.
#ifndef SERVER_SERVICE_STORE_WORK_H_
#define SERVER_SERVICE_STORE_WORK_H_

#include <grpcpp/alarm.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/service/call_loop.h"
#include "server/service/worker_pool.h"

namespace routing_replay::server {

// Of one call, one thing at a time, which keeps the order of what a call asks. Used on the loop's thread.
class StoreWork {
 public:
  // `on_done` is called on the loop's thread, or by Start.
  StoreWork(Call* call, std::function<void()> on_done)
      : done_(call, [this](bool) { Done(); }), on_done_(std::move(on_done)) {}

  // Calls `work`, which may touch nothing of the call that the loop's thread uses while busy(), and then on_done.
  // `workers`: null of a store that never waits: then both are called at once, as a change of threads would cost more
  // than they do. Errors as those of WorkerPool::Run: neither is called.
  absl::Status Start(WorkerPool* workers, const std::string& owner, CallLoop& loop, std::function<void()> work) {
    busy_ = true;
    if (workers == nullptr) {
      work();
      Done();
      return absl::OkStatus();
    }
    absl::Status taken = workers->Run(owner, [this, &loop, work = std::move(work)] {
      work();
      done_.Post(alarm_, loop.queue());  // The last thing: the call may end with it.
    });
    busy_ = taken.ok();
    if (taken.ok()) done_.Begin();  // Its event is taken on this thread, so later.
    return taken;
  }
  bool busy() const { return busy_; }

 private:
  void Done() {
    busy_ = false;
    on_done_();
  }

  CallEvent done_;
  const std::function<void()> on_done_;
  grpc::Alarm alarm_;
  bool busy_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_STORE_WORK_H_
