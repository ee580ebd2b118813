// The 32 lanes of a warp on the CPU, to run and test a GPU's warp code without a GPU.
//
// Each lane is a fiber with its own stack. A lane runs until it reaches a barrier; then the next lane runs. All lanes
// must reach the same barriers. If a lane ends early, or has passed another number of barriers than the others, the
// process ends.
#ifndef TESTS_SUPPORT_FIBER_WARP_H_
#define TESTS_SUPPORT_FIBER_WARP_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>

namespace routing_replay::testing {

class FiberWarp;

// The view of one lane: the `Warp` of trainer_plugin/replay/warp_lanes.h.
class FiberLane {
 public:
  FiberLane(FiberWarp* warp, int32_t lane) : warp_(warp), lane_(lane) {}

  int32_t lane() const { return lane_; }
  void Sync() const;

  template <typename T>
  T Shuffle(T value, int32_t source) const {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = Exchange(word, source);
    std::memcpy(&value, &word, sizeof(T));
    return value;
  }
  template <typename T>
  T ShuffleXor(T value, int32_t mask) const {
    return Shuffle(value, lane_ ^ mask);
  }

 private:
  uint64_t Exchange(uint64_t word, int32_t source) const;

  FiberWarp* warp_;
  int32_t lane_;
};

class FiberWarp {
 public:
  FiberWarp();
  ~FiberWarp();

  // Runs `body` on all 32 lanes.
  void Run(const std::function<void(const FiberLane&)>& body);

 private:
  friend class FiberLane;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_FIBER_WARP_H_
