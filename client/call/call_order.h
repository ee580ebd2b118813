// Keeps the calls of one object in the order in which they were made, whichever threads work on them.
#ifndef CLIENT_CALL_ORDER_H_
#define CLIENT_CALL_ORDER_H_

#include <cstdint>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// Thread-safe.
class CallOrder {
 private:
  struct Line;

 public:
  // The place of one call in the order, until it is destroyed.
  class Place {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // Waits until all places that were taken before this one are gone. CANCELLED or DEADLINE_EXCEEDED if the thread's
    // call ends first.
    absl::Status Await() const;

   private:
    friend class CallOrder;
    Place(std::shared_ptr<Line> line, uint64_t number) : line_(std::move(line)), number_(number) {}

    const std::shared_ptr<Line> line_;
    const uint64_t number_;
  };

  std::shared_ptr<const Place> Take();
  // Waits until all places that are taken now are gone. Fails with the errors of Place.
  absl::Status AwaitAll() const;
  // Returns true if no place is taken.
  bool empty() const;

 private:
  struct Line {
    absl::Status Await(uint64_t number);

    Mutex mutex;
    CondVar changed;
    uint64_t next ABSL_GUARDED_BY(mutex) = 1;
    std::set<uint64_t> taken ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

}  // namespace routing_replay::client

#endif  // CLIENT_CALL_ORDER_H_
