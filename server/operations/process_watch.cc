#include "server/operations/process_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// A descriptor of the process rather than its number, which may be given to another process.
class PidfdWatch final : public ProcessWatch {
 public:
  PidfdWatch(int process, int stop, std::function<void()> on_end)
      : process_(process), stop_(stop), thread_([this, on_end = std::move(on_end)] { Wait(on_end); }) {}
  ~PidfdWatch() override {
    eventfd_write(stop_, 1);
    thread_.join();
    close(process_);
    close(stop_);
  }

 private:
  void Wait(const std::function<void()>& on_end) const {
    pollfd events[] = {{process_, POLLIN, 0}, {stop_, POLLIN, 0}};
    while (poll(events, 2, -1) < 0 && errno == EINTR) {
    }
    if (events[0].revents != 0 && events[1].revents == 0) on_end();
  }

  const int process_;
  const int stop_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessWatch>> ProcessWatch::Start(int pid, std::function<void()> on_end) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (process < 0 && errno == ESRCH) return absl::NotFoundError(absl::StrCat("there is no process ", pid));
  if (process < 0) return absl::ErrnoToStatus(errno, absl::StrCat("pidfd_open of process ", pid));
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "eventfd");
    close(process);
    return status;
  }
  return std::make_unique<PidfdWatch>(process, stop, std::move(on_end));
}

}  // namespace routing_replay::server
