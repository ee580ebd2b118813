// How a cost grows with a size.
#ifndef TESTS_BENCH_SCALE_FIT_H_
#define TESTS_BENCH_SCALE_FIT_H_

#include <vector>

namespace routing_replay::bench {

struct Measured {
  double size = 0, cost = 0;  // Both above 0.
};

// The exponent e of cost = c size^e, by least squares over the logarithms. Requires two sizes.
double Exponent(const std::vector<Measured>& points);

// A constant part, and a part proportional to the size.
struct Line {
  double fixed = 0, each = 0;

  double At(double size) const { return fixed + each * size; }
};

// The line with the least squares of relative errors. Requires two sizes.
Line FitLine(const std::vector<Measured>& points);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SCALE_FIT_H_
