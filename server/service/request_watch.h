// Ends calls whose headers came and whose request does not: each holds a thread of gRPC's meanwhile.
#ifndef SERVER_SERVICE_REQUEST_WATCH_H_
#define SERVER_SERVICE_REQUEST_WATCH_H_

#include <grpcpp/server_context.h>

#include <chrono>
#include <list>

#include "proto/wire/mutex.h"
#include "server/operations/periodic_thread.h"

namespace routing_replay {

// Thread-safe.
class RequestWatch {
  struct Awaited {
    grpc::ServerContext* call;
    std::chrono::steady_clock::time_point until;
  };

 public:
  explicit RequestWatch(std::chrono::milliseconds patience) : patience_(patience), thread_([this] { return Look(); }) {}

  // As long as it lives, the call may be cancelled for want of its request. Ends before the call and the watch do.
  class Wait {
   public:
    Wait(RequestWatch& watch, grpc::ServerContext& call);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    RequestWatch& watch_;
    std::list<Awaited>::iterator place_;
  };

 private:
  std::chrono::milliseconds Look();

  const std::chrono::milliseconds patience_;
  Mutex mutex_;
  std::list<Awaited> awaited_ ABSL_GUARDED_BY(mutex_);  // The longest first.
  PeriodicThread thread_;
};

}  // namespace routing_replay

#endif  // SERVER_SERVICE_REQUEST_WATCH_H_
