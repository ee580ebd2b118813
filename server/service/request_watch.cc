#include "server/service/request_watch.h"

namespace routing_replay {
namespace {

constexpr std::chrono::milliseconds kLookInterval(250);

}  // namespace

RequestWatch::Wait::Wait(RequestWatch& watch, grpc::ServerContext& call) : watch_(watch) {
  MutexLock lock(watch_.mutex_);
  const auto until = std::chrono::steady_clock::now() + watch_.patience_;
  place_ = watch_.awaited_.insert(watch_.awaited_.end(), {&call, until});
}

RequestWatch::Wait::~Wait() {
  MutexLock lock(watch_.mutex_);
  watch_.awaited_.erase(place_);
}

std::chrono::milliseconds RequestWatch::Look() {
  MutexLock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  for (const Awaited& one : awaited_) {
    if (one.until > now) break;
    one.call->TryCancel();
  }
  return kLookInterval;
}

}  // namespace routing_replay
