// Whether clients are to be sent to this server, and if not, why.
#ifndef SERVER_OPERATIONS_READINESS_H_
#define SERVER_OPERATIONS_READINESS_H_

#include <functional>

#include "absl/status/status.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Starting, then serving as long as the store is well and the listeners answer, then draining. Thread-safe.
class Readiness {
 public:
  static constexpr char kStarting[] = "starting";

  // `changed` is called with every new verdict, one call at a time, by whoever caused it; it must not call this.
  explicit Readiness(std::function<void(const absl::Status&)> changed = nullptr) : changed_(std::move(changed)) {}

  void Started() {
    Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { starting_ = false; });
  }
  void Drain() {
    Change([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { draining_ = true; });
  }
  void SetStoreHealth(const absl::Status& health) {
    Change([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { store_ = health; });
  }

  // What a ListenerWatch says.
  void SetListenerHealth(const absl::Status& answering, bool alive) {
    Change([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (draining_) return;  // Listeners end then, and as they should.
      listener_ = answering;
      alive_ = alive;
    });
  }

  // OK, or UNAVAILABLE with the reason as its message: what the process cannot get out of without a new start.
  absl::Status Alive() const {
    MutexLock lock(mutex_);
    return alive_ ? absl::OkStatus() : absl::UnavailableError(listener_.message());
  }
  // OK, or UNAVAILABLE with the reason as its message.
  absl::Status Get() const {
    MutexLock lock(mutex_);
    return Verdict();
  }
  absl::Status store_health() const {
    MutexLock lock(mutex_);
    return store_;
  }
  bool draining() const {
    MutexLock lock(mutex_);
    return draining_;
  }

 private:
  void Change(const std::function<void()>& change);
  absl::Status Verdict() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::function<void(const absl::Status&)> changed_;
  mutable Mutex mutex_;
  bool starting_ ABSL_GUARDED_BY(mutex_) = true;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status store_ ABSL_GUARDED_BY(mutex_);
  absl::Status listener_ ABSL_GUARDED_BY(mutex_);
  bool alive_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_READINESS_H_
