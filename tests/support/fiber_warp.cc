#include "tests/support/fiber_warp.h"

#include <ucontext.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef RR_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace routing_replay::testing {
namespace {

constexpr int32_t kLanes = 32;
constexpr size_t kStackBytes = 256 << 10;

// A thread of control with a stack of its own. Sanitizers must be told of each switch; otherwise they attribute frames
// to the wrong stack.
struct Context {
  ucontext_t registers;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* sanitizer_frames = nullptr;  // AddressSanitizer's state of this fiber while it does not run.
  void* sanitizer_fiber = nullptr;   // ThreadSanitizer's handle of this fiber.
};

void BeforeSwitch([[maybe_unused]] void** frames, [[maybe_unused]] const Context& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(frames, to.stack, to.stack_bytes);
#endif
#ifdef RR_THREAD_SANITIZER
  __tsan_switch_to_fiber(to.sanitizer_fiber, 0);
#endif
}

// `from` is the context that switched to `self`. If `from` is the thread's own context, its stack is not known before
// the first switch.
void AfterSwitch([[maybe_unused]] const Context& self, [[maybe_unused]] Context& from) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(self.sanitizer_frames, &from.stack, &from.stack_bytes);
#endif
}

void NameThread([[maybe_unused]] Context& context) {
#ifdef RR_THREAD_SANITIZER
  context.sanitizer_fiber = __tsan_get_current_fiber();
#endif
}

void NameFiber([[maybe_unused]] Context& context) {
#ifdef RR_THREAD_SANITIZER
  context.sanitizer_fiber = __tsan_create_fiber(0);
#endif
}

void ForgetFiber([[maybe_unused]] Context& context) {
#ifdef RR_THREAD_SANITIZER
  if (context.sanitizer_fiber != nullptr) __tsan_destroy_fiber(context.sanitizer_fiber);
  context.sanitizer_fiber = nullptr;
#endif
}

// Returns when another context switches back.
void Switch(Context& self, Context& to) {
  BeforeSwitch(&self.sanitizer_frames, to);
  swapcontext(&self.registers, &to.registers);
  AfterSwitch(self, to);
}

}  // namespace

struct FiberWarp::State {
  struct Fiber : Context {
    std::vector<char> memory = std::vector<char>(kStackBytes);
    int64_t barriers = 0;
    bool done = false;
  };
  std::array<Fiber, kLanes> fibers;
  Context scheduler;
  // The values that lanes exchange. Two arrays alternate, so that one barrier per exchange is enough.
  std::array<std::array<uint64_t, kLanes>, 2> shown;
  std::array<int64_t, kLanes> exchanges;
  const std::function<void(const FiberLane&)>* body = nullptr;
  FiberWarp* warp = nullptr;
  int32_t running = 0;

  [[noreturn]] void RunLane() {
    AfterSwitch(fibers[running], scheduler);
    (*body)(FiberLane(warp, running));
    fibers[running].done = true;
    BeforeSwitch(nullptr, scheduler);  // The fiber does not run again.
    setcontext(&scheduler.registers);
    std::abort();
  }

  // makecontext can pass only ints, so the address of the state comes in two halves.
  static void Enter(unsigned low, unsigned high) {
    reinterpret_cast<State*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32)->RunLane();
  }

  void Prepare(Fiber& fiber) {
    fiber.barriers = 0;
    fiber.done = false;
    fiber.stack = fiber.memory.data();
    fiber.stack_bytes = fiber.memory.size();
    fiber.sanitizer_frames = nullptr;
    ForgetFiber(fiber);  // The old fiber still has the frames of the previous body, which never returned.
    NameFiber(fiber);
    getcontext(&fiber.registers);
    fiber.registers.uc_stack.ss_sp = fiber.memory.data();
    fiber.registers.uc_stack.ss_size = fiber.memory.size();
    fiber.registers.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&fiber.registers, reinterpret_cast<void (*)()>(&State::Enter), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
  }

  void CheckTogether() const {
    for (const Fiber& fiber : fibers) {
      if (fiber.done == fibers[0].done && fiber.barriers == fibers[0].barriers) continue;
      std::fprintf(stderr, "the lanes of a warp went different ways\n");
      std::abort();
    }
  }
};

FiberWarp::FiberWarp() : state_(std::make_unique<State>()) { state_->warp = this; }
FiberWarp::~FiberWarp() {
  for (State::Fiber& fiber : state_->fibers) ForgetFiber(fiber);
}

void FiberWarp::Run(const std::function<void(const FiberLane&)>& body) {
  State& state = *state_;
  state.body = &body;
  NameThread(state.scheduler);
  state.exchanges.fill(0);
  for (State::Fiber& fiber : state.fibers) state.Prepare(fiber);
  while (!state.fibers[0].done) {
    for (state.running = 0; state.running < kLanes; ++state.running) {
      Switch(state.scheduler, state.fibers[state.running]);
    }
    state.CheckTogether();
  }
}

void FiberLane::Sync() const {
  FiberWarp::State& state = *warp_->state_;
  ++state.fibers[lane_].barriers;
  Switch(state.fibers[lane_], state.scheduler);
}

uint64_t FiberLane::Exchange(uint64_t word, int32_t source) const {
  FiberWarp::State& state = *warp_->state_;
  auto& shown = state.shown[state.exchanges[lane_]++ % 2];
  shown[lane_] = word;
  Sync();
  return shown[source];
}

}  // namespace routing_replay::testing
