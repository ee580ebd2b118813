// Ends another thread's poll.
#ifndef SERVER_STORE_REDIS_CLIENT_WAKE_EVENT_H_
#define SERVER_STORE_REDIS_CLIENT_WAKE_EVENT_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace routing_replay::server {

// Thread-safe. Stays set until cleared.
class WakeEvent {
 public:
  WakeEvent() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;
  ~WakeEvent() { close(fd_); }

  void Set() { eventfd_write(fd_, 1); }
  void Clear() {
    eventfd_t count;
    eventfd_read(fd_, &count);
  }
  bool is_set() const {
    pollfd event{fd_, POLLIN, 0};
    return poll(&event, 1, 0) > 0;
  }
  int fd() const { return fd_; }  // Readable while set.

 private:
  const int fd_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_WAKE_EVENT_H_
