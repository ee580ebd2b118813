#include "tests/support/fiber_warp.h"

#include <ucontext.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace routing_replay::testing {
namespace {

constexpr int32_t kLanes = 32;
constexpr size_t kStackBytes = 256 << 10;

}  // namespace

struct FiberWarp::State {
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(kStackBytes);
    int64_t barriers = 0;
    bool done = false;
  };
  std::array<Fiber, kLanes> fibers;
  ucontext_t scheduler;
  // What the lanes show each other; two arrays in turn, so that one barrier is enough for an exchange.
  std::array<std::array<uint64_t, kLanes>, 2> shown;
  std::array<int64_t, kLanes> exchanges;
  const std::function<void(const FiberLane&)>* body = nullptr;
  FiberWarp* warp = nullptr;
  int32_t running = 0;

  void RunLane() {
    (*body)(FiberLane(warp, running));
    fibers[running].done = true;
  }

  // makecontext passes ints alone.
  static void Enter(unsigned low, unsigned high) {
    reinterpret_cast<State*>(static_cast<uintptr_t>(low) | static_cast<uintptr_t>(high) << 32)->RunLane();
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
FiberWarp::~FiberWarp() = default;

void FiberWarp::Run(const std::function<void(const FiberLane&)>& body) {
  State& state = *state_;
  state.body = &body;
  state.exchanges.fill(0);
  const auto self = reinterpret_cast<uintptr_t>(&state);
  for (State::Fiber& fiber : state.fibers) {
    fiber.barriers = 0;
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = &state.scheduler;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&State::Enter), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
  }
  while (!state.fibers[0].done) {
    for (state.running = 0; state.running < kLanes; ++state.running) {
      swapcontext(&state.scheduler, &state.fibers[state.running].context);
    }
    state.CheckTogether();
  }
}

void FiberLane::Sync() const {
  FiberWarp::State& state = *warp_->state_;
  ++state.fibers[lane_].barriers;
  swapcontext(&state.fibers[lane_].context, &state.scheduler);
}

uint64_t FiberLane::Exchange(uint64_t word, int32_t source) const {
  FiberWarp::State& state = *warp_->state_;
  auto& shown = state.shown[state.exchanges[lane_]++ % 2];
  shown[lane_] = word;
  Sync();
  return shown[source];
}

}  // namespace routing_replay::testing
