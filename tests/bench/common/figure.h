// Measured values and their text: median and range of rounds, and ratios taken inside a round.
#ifndef TESTS_BENCH_COMMON_FIGURE_H_
#define TESTS_BENCH_COMMON_FIGURE_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace routing_replay::bench {

struct Spread {
  double median = 0, min = 0, max = 0;
};

// Requires values.
Spread SpreadOf(std::vector<double> values);

struct Figure {
  std::string name;  // "handoff.u8.wall"
  std::string unit;
  Spread value;
  // What the floor took in the same rounds, in the same unit, and value / floor of each round.
  std::string floor_name;
  std::optional<Spread> floor;
  std::optional<Spread> ratio;
};

Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values);
// Values of one round stand at the same index.
Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values,
                  const std::string& floor_name, const std::vector<double>& floor);

// {"name", "unit", "median", "min", "max", "floor", "floor_name", "ratio", "ratio_min", "ratio_max"}; null where there
// is no floor.
nlohmann::json ToJson(const Figure& figure);
std::string Table(const std::vector<Figure>& figures);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_FIGURE_H_
