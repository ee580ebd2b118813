// Objects that must be at rest while the process forks.
#ifndef CLIENT_FORK_PART_H_
#define CLIENT_FORK_PART_H_

#include <list>

namespace routing_replay::client {

// Is notified of forks as long as it lives. That happens only while no call is in progress: only its own threads are
// running, and no part is made or destroyed.
class ForkPart {
 public:
  ForkPart(const ForkPart&) = delete;
  ForkPart& operator=(const ForkPart&) = delete;

  // Calls Rest on all parts, the newest first.
  static void RestAll();
  static void GoOnAll();
  static void BeginAnewAll();

 protected:
  ForkPart();
  ~ForkPart();

 private:
  // Before the fork: ends its threads and releases everything that it has from gRPC. Parts that it uses are older, and
  // rest after it.
  virtual void Rest() {}
  // After the fork in the parent, and …
  virtual void GoOn() {}
  // … in the child, which owns nothing that was in progress.
  virtual void BeginAnew() {}

  std::list<ForkPart*>::iterator at_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_FORK_PART_H_
