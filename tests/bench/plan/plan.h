// The time to make a replay plan: one rank's plan of a micro-batch of 2^20 tokens, on one core.
//
// Cases: packed documents of 8192 and of 64 tokens, a rectangle in sequence-major order, samples without flattening,
// and a stream whose padding a policy predicts first. The floor is a memcpy of the row map in its long form, 12 bytes
// per local row.
#ifndef TESTS_BENCH_PLAN_PLAN_H_
#define TESTS_BENCH_PLAN_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Milliseconds per plan. INTERNAL if a plan does not replay the rows of its layout.
absl::StatusOr<std::vector<Figure>> BenchPlan(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_PLAN_PLAN_H_
