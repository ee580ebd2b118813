#include "tests/bench/common/figure.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace routing_replay::bench {
namespace {

// Prints three significant digits.
std::string Number(double value) {
  if (value >= 100) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.*f", value >= 10 ? 1 : value >= 1 ? 2 : 3, value);
}

// The median and the range, or only the value if it was the same in every round.
std::string Text(const Spread& spread) {
  if (spread.min == spread.max) return Number(spread.median);
  return absl::StrFormat("%s [%s..%s]", Number(spread.median), Number(spread.min), Number(spread.max));
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[n / 2] + values[(n - 1) / 2]) / 2, values.front(), values.back()};
}

Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values) {
  return {.name = name, .unit = unit, .value = SpreadOf(values)};
}

Figure MakeFigure(const std::string& name, const std::string& unit, const std::vector<double>& values,
                  const std::string& floor_name, const std::vector<double>& floor) {
  Figure figure = MakeFigure(name, unit, values);
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / floor[i]);
  figure.floor_name = floor_name;
  figure.floor = SpreadOf(floor);
  figure.ratio = SpreadOf(ratios);
  return figure;
}

nlohmann::json ToJson(const Figure& figure) {
  nlohmann::json json{{"name", figure.name},     {"unit", figure.unit},     {"median", figure.value.median},
                      {"min", figure.value.min}, {"max", figure.value.max}, {"floor", nullptr},
                      {"ratio", nullptr}};
  if (!figure.floor) return json;
  json["floor"] = figure.floor->median;
  json["floor_name"] = figure.floor_name;
  json["ratio"] = figure.ratio->median;
  json["ratio_min"] = figure.ratio->min;
  json["ratio_max"] = figure.ratio->max;
  return json;
}

std::string Table(const std::vector<Figure>& figures) {
  std::string table =
      absl::StrFormat("%-42s %-5s %-22s %-28s %s\n", "", "unit", "median [min..max]", "floor", "ratio in a round");
  for (const Figure& figure : figures) {
    absl::StrAppendFormat(&table, "%-42s %-5s %-22s %-28s %s\n", figure.name, figure.unit, Text(figure.value),
                          figure.floor ? absl::StrCat(figure.floor_name, " ", Text(*figure.floor)) : "",
                          figure.ratio ? Text(*figure.ratio) : "");
  }
  return table;
}

}  // namespace routing_replay::bench
