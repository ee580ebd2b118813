#include "tests/bench/scale/fit.h"

#include <cmath>

namespace routing_replay::bench {
namespace {

// The least-squares line through (x, y) with weights w.
class WeightedSums {
 public:
  void Add(double x, double y, double w) {
    w_ += w;
    x_ += w * x;
    y_ += w * y;
    xx_ += w * x * x;
    xy_ += w * x * y;
  }
  double slope() const { return (w_ * xy_ - x_ * y_) / (w_ * xx_ - x_ * x_); }
  double at_zero() const { return (y_ - slope() * x_) / w_; }

 private:
  double w_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace

double Exponent(const std::vector<Measured>& points) {
  WeightedSums sums;
  for (const Measured& point : points) sums.Add(std::log(point.size), std::log(point.cost), 1);
  return sums.slope();
}

Line FitLine(const std::vector<Measured>& points) {
  WeightedSums sums;
  for (const Measured& point : points) sums.Add(point.size, point.cost, 1 / (point.cost * point.cost));
  return {.fixed = sums.at_zero(), .each = sums.slope()};
}

}  // namespace routing_replay::bench
