// One thread of the direct path (Append and Read without gRPC): serves the sockets of its connections, and their calls.
#ifndef SERVER_DIRECT_DIRECT_LOOP_H_
#define SERVER_DIRECT_DIRECT_LOOP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/message/byte_stream.h"
#include "proto/wire/mutex.h"
#include "server/service/served_call.h"

namespace routing_replay::server {

// A socket that a loop serves. The loop calls these functions on its thread.
class LoopSocket {
 public:
  virtual ~LoopSocket() = default;
  // `events` are those of epoll. May be called although there is nothing to do.
  virtual void OnReady(uint32_t events) = 0;
  // Called once a second.
  virtual void OnSecond(std::chrono::steady_clock::time_point now) = 0;
  // Called when the loop ends.
  virtual void Close() = 0;
};

class DirectLoop final : public CallLoop {
 public:
  DirectLoop();
  // If the loop was started, call ShutdownAndJoin before.
  ~DirectLoop() override;

  void Start();
  void Post(CallAlarm& alarm, CallEvent& event) override;
  void Drain() override;
  // May be called from any thread: runs `task` soon on the loop's thread.
  void Run(std::function<void()> task);
  // Closes all sockets, and waits for the thread, which ends with the last call.
  void ShutdownAndJoin();

  // Complete, Add, Watch and Forget: call them on the loop's thread, or before Start. Complete delivers `event` soon.
  void Complete(CallEvent& event, bool ok) { ready_.push_back({&event, ok}); }
  // Adds a socket and watches it for `events`. The loop keeps it until Forget. Returns the socket's number.
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
  // Takes posted events and due timers, and runs posted tasks. Returns how many ms OnSockets may wait; -1: forever.
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
  // Used by the loop's thread only:
  std::vector<Ready> ready_;
  std::map<uint64_t, std::shared_ptr<LoopSocket>> sockets_;
  uint64_t next_ = 1;
  std::chrono::steady_clock::time_point looked_;
  bool ending_ = false;
};

// Serves the calls of one connection until it closes. Call it on the loop's thread, when `context.direct` is set.
// `peer` is written as gRPC names peers. `closed` is called once, when the connection closes.
void ServeDirectConnection(ServiceContext& context, DirectLoop& loop, std::unique_ptr<ByteStream> stream,
                           std::string peer, std::function<void()> closed);

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_LOOP_H_
