// Base class of objects that must stop their activity while the process forks.
#ifndef CLIENT_FORK_PART_H_
#define CLIENT_FORK_PART_H_

#include <list>

namespace routing_replay::client {

// A ForkPart is notified of forks as long as it lives. Notifications come only while no call of the library is in
// progress. At that time only ForkParts still have threads in the library, and none of them is made or destroyed.
class ForkPart {
 public:
  ForkPart(const ForkPart&) = delete;
  ForkPart& operator=(const ForkPart&) = delete;

  // Each of these functions notifies all ForkParts, the newest first.
  static void RestAll() { ForAll(&ForkPart::Rest); }
  static void GoOnAll() { ForAll(&ForkPart::GoOn); }
  static void BeginAnewAll() { ForAll(&ForkPart::BeginAnew); }

 protected:
  ForkPart();
  ~ForkPart();

 private:
  static void ForAll(void (ForkPart::*notify)());
  // Called before the fork: ends the object's threads and releases everything that it holds of gRPC. Objects that it
  // uses are older, so their Rest is called later.
  virtual void Rest() {}
  // Called after the fork in the parent.
  virtual void GoOn() {}
  // Called after the fork in the child, where nothing that was in progress exists any more.
  virtual void BeginAnew() {}

  std::list<ForkPart*>::iterator at_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_FORK_PART_H_
