// A picture with its words: axes and names stand beside the SVG as HTML.
#ifndef CLIENT_RRCTL_REPORT_CHART_H_
#define CLIENT_RRCTL_REPORT_CHART_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace routing_replay::client {

// `at` is a share of the way from the left, or from the top.
struct Tick {
  double at = 0;
  std::string label;
};

// Ticks of at most `count` of the `cells` in a row, in the middle of each.
std::vector<Tick> CellTicks(size_t cells, size_t count, const std::function<std::string(size_t cell)>& label);
// Ticks of a scale from below, `least` to `most`.
std::vector<Tick> ScaleTicks(double least, double most);

struct Chart {
  std::string name;  // Above it; empty: none.
  std::string tell;  // Which function of the page's script speaks of a cell, …
  size_t rows = 1;   // … and what cells there are.
  size_t columns = 1;
  int height = 150;   // In pixels.
  bool heat = false;  // A map of cells, not a plot over a scale.
  std::string style;  // Class, with a space before it; or empty.
  std::vector<Tick> y, x;
  std::string x_name;
  std::string svg;
};
std::string ChartHtml(const Chart& chart);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_CHART_H_
