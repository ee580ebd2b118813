#include "client/c_api/gate.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/c_api/calls.h"
#include "client/call/fork_part.h"

// A gRPC function that no public header declares. Needed because one of gRPC's own threads may finish the shutdown.
void grpc_maybe_wait_for_async_shutdown();

namespace routing_replay::c_api {

namespace {

// Number of C functions that this thread is inside of; above 1 if a callback calls another function.
constinit thread_local int depth = 0;
constinit thread_local bool forks = false;
constinit std::atomic<Gate*> of_process = nullptr;

}  // namespace

Gate& Gate::Shared() {
  static Gate* const gate = new Gate;
  return *gate;
}

// After a fork without rr_fork_before, the child cannot use the library: its locks may be held by threads that exist
// only in the parent.
Gate::Gate() {
  of_process = this;
  pthread_atfork(nullptr, nullptr, [] {
    if (!forks) of_process.load()->usable_ = false;
  });
}

bool Gate::Enter() {
  if (depth++ > 0 || !usable_) return usable_;
  inside_.fetch_add(1);
  if (!shut_) return true;
  GoOut();
  MutexLock lock(mutex_);
  while (shut_) changed_.Wait(mutex_);
  inside_.fetch_add(1);
  return true;
}

void Gate::Leave() {
  if (--depth == 0 && usable_) GoOut();
}

void Gate::GoOut() {
  inside_.fetch_sub(1);
  if (!shut_) return;
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

Gate::Outside::Outside() { Shared().GoOut(); }

Gate::Outside::~Outside() {
  Gate& gate = Shared();
  MutexLock lock(gate.mutex_);
  while (gate.shut_) gate.changed_.Wait(gate.mutex_);
  gate.inside_.fetch_add(1);
}

Gate::Breakable::Breakable(client::Cancellation& call) : call_(call) {
  Gate& gate = Shared();
  MutexLock lock(gate.mutex_);
  gate.calls_.insert(&call);
  if (gate.shut_) call.BreakOff();
}

Gate::Breakable::~Breakable() {
  MutexLock lock(Shared().mutex_);
  Shared().calls_.erase(&call_);
}

bool Gate::Shut() {
  if (!usable_) return false;
  MutexLock lock(mutex_);
  while (shut_) changed_.Wait(mutex_);
  shut_ = forks = true;
  for (client::Cancellation* call : calls_) call->BreakOff();
  return true;
}

bool Gate::AwaitNobody(Clock::Time deadline) {
  if (depth > 0) return false;  // This thread forks in a callback, and so inside a C function.
  MutexLock lock(mutex_);
  while (inside_ > 0 && Clock::Real().Now() < deadline) changed_.WaitUntil(mutex_, deadline);
  return inside_ == 0;
}

void Gate::Open() {
  MutexLock lock(mutex_);
  shut_ = forks = false;
  changed_.NotifyAll();
}

void Gate::BeginAnew(bool usable) {
  std::construct_at(&mutex_);
  std::construct_at(&changed_);
  usable_ = usable;
  ++generation_;
  inside_ = depth > 0 ? 1 : 0;
}

// gRPC has threads and locks of its own, so it is shut down before a fork, and started again in both processes.

namespace {

constexpr std::chrono::seconds kLongestWait(5);
constexpr std::chrono::seconds kLongestEnd(1);  // How long to wait for a thread that has nothing left to do.
constexpr std::chrono::microseconds kPoll(100);

// Returns true if gRPC's threads are running or about to run. gRPC does not join the threads that it ends, and an
// Abseil lock that such a thread still holds would stay locked in the child. Threads of other copies of gRPC have
// the same names; they hardly delay a fork, because they mostly sleep.
bool ThreadsOfGrpcRun() {
  static constexpr absl::string_view kNames[] = {"grpc_", "event_engine", "timer_manager", "default-exec",
                                                 "resolver-exec"};
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), &closedir);
  while (const dirent* entry = threads ? readdir(threads.get()) : nullptr) {
    const std::string path = absl::StrCat("/proc/self/task/", entry->d_name, "/stat");
    const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), &fclose);
    char name[32] = {}, state = 'S';  // "123 (name) S …"
    if (!file || fscanf(file.get(), "%*d (%31[^)]) %c", name, &state) != 2 || state == 'S') continue;
    for (const absl::string_view known : kNames) {
      if (absl::StartsWith(name, known)) return true;
    }
  }
  return false;
}

// Stops all activity of the library. This runs on a separate thread, so that the forking thread can stop waiting at a
// deadline.
class Resting {
 public:
  // Returns true if all activity has stopped in time and gRPC has no state left.
  bool Begin(Clock::Time deadline) {
    ended_ = false;
    try {
      thread_ = std::thread([this, deadline] { Rest(deadline); });
    } catch (const std::system_error&) {
      return false;
    }
    {
      MutexLock lock(mutex_);
      while (!ended_ && Clock::Real().Now() < deadline) changed_.WaitUntil(mutex_, deadline);
      if (!ended_) return false;
    }
    thread_.join();
    return grpc_is_initialized() == 0;
  }
  void Await() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Rest(Clock::Time deadline) {
    const bool used = grpc_is_initialized() != 0;
    if (used) grpc_init();  // Keeps gRPC initialized, so that the shutdown below is the last one, if possible.
    client::ForkPart::RestAll();
    if (used) grpc_shutdown_blocking();
    grpc_maybe_wait_for_async_shutdown();
    // Waits until gRPC's threads have closed the connections.
    while (grpc_is_initialized() != 0 && Clock::Real().Now() < deadline) {
      std::this_thread::sleep_for(kPoll);
      grpc_maybe_wait_for_async_shutdown();
    }
    const Clock::Time patience = std::min(deadline, Clock::Real().Now() + kLongestEnd);
    while (ThreadsOfGrpcRun() && Clock::Real().Now() < patience) std::this_thread::sleep_for(kPoll);
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool ended_ = false;
  std::thread thread_;
};

// After its shutdown, gRPC keeps one epoll set and the descriptor that wakes it. Unless they are replaced, parent and
// child share both after a fork.
struct WakeUp {
  int set = -1, descriptor = -1;
  epoll_event event{};
};

bool IsOfGrpc(uint64_t address) {
  Dl_info grpc, other;
  return dladdr(reinterpret_cast<void*>(&grpc_init), &grpc) != 0 &&
         dladdr(reinterpret_cast<void*>(address), &other) != 0 && grpc.dli_fbase == other.dli_fbase;
}

// If the epoll set `set` belongs to gRPC, returns it with the descriptor that wakes it. It belongs to gRPC if the data
// that it holds for a descriptor is an address inside gRPC's library.
std::optional<WakeUp> WakeUpOf(int set) {
  const std::string path = absl::StrCat("/proc/self/fdinfo/", set);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), &fclose);
  char line[256];
  while (file && fgets(line, sizeof(line), file.get()) != nullptr) {
    WakeUp found{.set = set};
    uint64_t data = 0;
    if (sscanf(line, "tfd: %d events: %x data: %" SCNx64, &found.descriptor, &found.event.events, &data) != 3) continue;
    found.event.data.u64 = data;
    if (IsOfGrpc(data)) return found;
  }
  return std::nullopt;
}

std::vector<WakeUp> FindWakeUps() {
  std::vector<WakeUp> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir("/proc/self/fd"), &closedir);
  while (const dirent* entry = open ? readdir(open.get()) : nullptr) {
    char kind[64] = {};
    if (readlinkat(dirfd(open.get()), entry->d_name, kind, sizeof(kind) - 1) < 0) continue;
    if (std::strcmp(kind, "anon_inode:[eventpoll]") != 0) continue;
    if (const auto one = WakeUpOf(std::atoi(entry->d_name))) found.push_back(*one);
  }
  return found;
}

// Replaces both descriptors by new ones that only this process has.
bool Replace(WakeUp& old) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const bool done = set >= 0 && descriptor >= 0 && dup3(set, old.set, O_CLOEXEC) >= 0 &&
                    dup3(descriptor, old.descriptor, O_CLOEXEC) >= 0 &&
                    epoll_ctl(old.set, EPOLL_CTL_ADD, old.descriptor, &old.event) == 0;
  if (set >= 0) close(set);
  if (descriptor >= 0) close(descriptor);
  return done;
}

// State of the forking thread while the gate is closed.
struct Fork {
  Resting resting;
  bool at_rest = false;
  std::vector<WakeUp> wake_ups;
};

Fork& Present() {
  static Fork* const fork = new Fork;
  return *fork;
}

}  // namespace

}  // namespace routing_replay::c_api

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

void rr_fork_before() {
  const Clock::Time deadline = Clock::Real().Now() + kLongestWait;
  Gate& gate = Gate::Shared();
  if (!gate.Shut()) return;
  Threads& threads = Threads::Shared();
  threads.Rest();
  Fork& fork = Present();
  fork.at_rest = gate.AwaitNobody(deadline) && threads.AwaitRest(deadline) && fork.resting.Begin(deadline);
  if (fork.at_rest) fork.wake_ups = FindWakeUps();
}

void rr_fork_in_parent() {
  if (!Gate::Shared().usable()) return;
  Present().resting.Await();
  client::ForkPart::GoOnAll();
  Gate::Shared().Open();
  Threads::Shared().GoOn();
}

void rr_fork_in_child() {
  if (!Gate::Shared().usable()) return;
  Fork& fork = Present();
  bool usable = fork.at_rest;
  if (usable) {
    for (WakeUp& one : fork.wake_ups) usable = Replace(one) && usable;
  }
  Gate::Shared().BeginAnew(usable);
  if (usable) {
    client::ForkPart::BeginAnewAll();
    Threads::Shared().BeginAnew();
  }
  Gate::Shared().Open();
}
