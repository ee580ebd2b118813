// Runs a test body once for every instruction set that this build holds and this CPU has, the portable one included.
#ifndef PROTO_WIRE_SIMD_TARGETS_TEST_UTIL_H_
#define PROTO_WIRE_SIMD_TARGETS_TEST_UTIL_H_

#include <hwy/highway.h>

#include <functional>

#include <gtest/gtest.h>

namespace routing_replay::testing {

// Not thread-safe: Highway's choice of the instruction set applies to the whole process.
inline void ForEachSimdTarget(const std::function<void()>& body) {
  for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace routing_replay::testing

#endif  // PROTO_WIRE_SIMD_TARGETS_TEST_UTIL_H_
