// A series as the paths of a small SVG.
#ifndef SERVER_OPERATIONS_PAGE_SPARKLINE_H_
#define SERVER_OPERATIONS_PAGE_SPARKLINE_H_

#include <string>
#include <vector>

namespace routing_replay::server {

// In a box of 240 x 60 with 0 at its lower edge and `top` at its upper; empty of fewer than two values.
struct Sparkline {
  std::string line;
  std::string area;  // Below the line.
};
Sparkline MakeSparkline(const std::vector<double>& values, double top);

// The lowest of 1, 2 and 5 times a power of ten that is not below any value; 1 where all are 0.
double RoundTop(const std::vector<double>& values);
// The same in the unit of bytes (KiB, MiB, …) that the largest value has.
double RoundBytesTop(std::vector<double> values);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_PAGE_SPARKLINE_H_
