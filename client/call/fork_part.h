// What a fork of the process must find at rest.
#ifndef CLIENT_FORK_PART_H_
#define CLIENT_FORK_PART_H_

#include <list>

namespace routing_replay::client {

// Is told of forks as long as it lives. That is only while no call is under way: nobody but threads of its own is in
// there, and none is made and none goes.
class ForkPart {
 public:
  ForkPart(const ForkPart&) = delete;
  ForkPart& operator=(const ForkPart&) = delete;

  // Of all there are, the newest first.
  static void RestAll();
  static void GoOnAll();
  static void BeginAnewAll();

 protected:
  ForkPart();
  ~ForkPart();

 private:
  // Before the fork: its threads end, and it lets go of all that it has from gRPC. What it uses is older, and rests
  // after it.
  virtual void Rest() {}
  // Afterwards in the parent, and …
  virtual void GoOn() {}
  // … in the child, to which nothing belongs that is under way.
  virtual void BeginAnew() {}

  std::list<ForkPart*>::iterator at_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_FORK_PART_H_
