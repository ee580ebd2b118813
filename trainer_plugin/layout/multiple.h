// Arithmetic with multiples, which cannot overflow.
#ifndef TRAINER_PLUGIN_LAYOUT_MULTIPLE_H_
#define TRAINER_PLUGIN_LAYOUT_MULTIPLE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace routing_replay::trainer {

// The largest result, far above the rows of any stream: a layout that leads to this value is rejected.
inline constexpr int64_t kMaxMultiple = int64_t{1} << 40;

// Arguments must be in 1 … kMaxMultiple; the result is in this range, too.
inline int64_t Times(int64_t a, int64_t b) { return a > kMaxMultiple / b ? kMaxMultiple : a * b; }
inline int64_t LeastCommonMultiple(int64_t a, int64_t b) { return Times(a / std::gcd(a, b), b); }

// The smallest multiple that is at least `value`. Requires 0 <= value and 1 <= multiple, whose sum fits an int64.
inline int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The number of chunks into which zigzag divides a span: 2C, or 1 without CP.
inline int64_t ZigzagUnit(int64_t cp_size) { return cp_size > 1 ? 2 * cp_size : 1; }

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_MULTIPLE_H_
