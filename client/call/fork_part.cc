#include "client/call/fork_part.h"

#include "proto/wire/mutex.h"

namespace routing_replay::client {

namespace {

struct Parts {
  Mutex mutex;
  std::list<ForkPart*> newest_first ABSL_GUARDED_BY(mutex);
};

Parts& All() {
  static Parts* const parts = new Parts;
  return *parts;
}

}  // namespace

ForkPart::ForkPart() {
  MutexLock lock(All().mutex);
  at_ = All().newest_first.insert(All().newest_first.begin(), this);
}

ForkPart::~ForkPart() {
  MutexLock lock(All().mutex);
  All().newest_first.erase(at_);
}

void ForkPart::ForAll(void (ForkPart::*notify)()) {
  MutexLock lock(All().mutex);
  for (ForkPart* part : All().newest_first) (part->*notify)();
}

}  // namespace routing_replay::client
