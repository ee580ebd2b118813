// Measured values and their text: median and range over the rounds, and ratios of values of the same round.
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

// `values` must not be empty.
Spread SpreadOf(std::vector<double> values);

struct Figure {
  std::string name;  // "handoff.u8.wall"
  std::string unit;
  Spread value;
  // The floor is the least that the value could be, measured in the same rounds and the same unit. `ratio` is value /
  // floor, computed in each round.
  std::string floor_name;
  std::optional<Spread> floor;
  std::optional<Spread> ratio;
};

Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values);
// values[i] and floor[i] must be of the same round.
Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values,
                  const std::string& floor_name, const std::vector<double>& floor);

// {"name", "unit", "median", "min", "max", "floor", "floor_name", "ratio", "ratio_min", "ratio_max"}. The last five are
// null without a floor.
nlohmann::json ToJson(const Figure& figure);
std::string Table(const std::vector<Figure>& figures);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_FIGURE_H_
