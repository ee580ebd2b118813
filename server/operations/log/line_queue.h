// Lines on their way to a file descriptor that perhaps nobody reads: whoever writes one waits for no reader.
#ifndef SERVER_OPERATIONS_LOG_LINE_QUEUE_H_
#define SERVER_OPERATIONS_LOG_LINE_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace routing_replay::server {

// Thread-safe. Lives as long as the process: its thread may be in a write that never ends.
class LineQueue {
 public:
  // `dropped` is called by the thread that writes, each time that all is written after lines were dropped, with the
  // number of these.
  LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped);
  LineQueue(const LineQueue&) = delete;
  LineQueue& operator=(const LineQueue&) = delete;
  ~LineQueue() = delete;

  // With its newline. Where there is no room the oldest lines go.
  void Push(std::string line);
  // Of all lines since the start.
  int64_t dropped() const;
  // Returns once all is written, or `patience` is over.
  void Flush(std::chrono::milliseconds patience);

 private:
  struct State;
  static void Write(State& state);
  State* const state_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_LOG_LINE_QUEUE_H_
