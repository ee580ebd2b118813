// A thread of the direct path: the sockets of its connections, and the calls on them.
#ifndef SERVER_DIRECT_DIRECT_LOOP_H_
#define SERVER_DIRECT_DIRECT_LOOP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "proto/wire/mutex.h"
#include "server/service/served_call.h"

namespace routing_replay::server {

// A socket of a loop, as the loop sees it: on its thread.
class LoopSocket {
 public:
  virtual ~LoopSocket() = default;
  // `events`: of epoll. Also where there is nothing to do.
  virtual void OnReady(uint32_t events) = 0;
  // Once a second.
  virtual void OnSecond(std::chrono::steady_clock::time_point now) = 0;
  // The loop ends.
  virtual void Close() = 0;
};

class DirectLoop final : public CallLoop {
 public:
  DirectLoop();
  // Requires ShutdownAndJoin before, where it was started.
  ~DirectLoop() override;

  void Start();
  void Post(CallAlarm& alarm, CallEvent& event) override;
  void Drain() override;
  // From any thread: `task` runs soon on the loop's.
  void Run(std::function<void()> task);
  // Closes all sockets. The thread ends when the last call has.
  void ShutdownAndJoin();

  // On the loop's thread, as all below. The event of an operation comes soon.
  void Complete(CallEvent& event, bool ok) { ready_.push_back({&event, ok}); }
  // Takes the socket in, which is kept until Forget, and tells it what of `events` it is ready for. Returns its number.
  uint64_t Add(std::shared_ptr<LoopSocket> socket, int fd, uint32_t events);
  void Watch(uint64_t number, int fd, uint32_t events);
  void Forget(uint64_t number, int fd);

 private:
  using Time = Clock::Time;
  struct Ready {
    CallEvent* event;
    bool ok;
  };
  struct Timer {
    CallAlarm* alarm;
    CallEvent* event;
  };
  using Timers = std::multimap<Time, Timer>;

  void SetAlarm(CallAlarm& alarm, Time time, CallEvent& event) override;
  void CancelAlarm(CallAlarm& alarm) override;
  void Wake();
  void Serve();
  // Takes what others have posted, and timers whose time has come. Returns how long there is nothing to do, in ms.
  int TakePosted();
  void OnSockets(int timeout_ms);
  void LookAtAll();

  const int epoll_, wake_;
  std::thread thread_;
  Mutex mutex_;
  std::vector<Ready> posted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  Timers timers_ ABSL_GUARDED_BY(mutex_);
  std::map<CallAlarm*, Timers::iterator> timer_of_ ABSL_GUARDED_BY(mutex_);
  // Of the thread:
  std::vector<Ready> ready_;
  std::map<uint64_t, std::shared_ptr<LoopSocket>> sockets_;
  uint64_t next_ = 1;
  std::chrono::steady_clock::time_point looked_;
  bool ending_ = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_LOOP_H_
