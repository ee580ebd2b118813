// Pictures as inline SVG: only what is drawn, stretched to its place by the page. Words stand beside it, in the page,
// so that they keep their size where a picture is narrow. Colours are classes of the page's style sheet, which knows of
// light and dark.
#ifndef CLIENT_RRCTL_REPORT_PLOT_H_
#define CLIENT_RRCTL_REPORT_PLOT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace routing_replay::client {

// Steps of a colour scale on each side: class "s1" … "s8", and "m1" … "m8" below the middle of a scale with two sides.
inline constexpr int kSteps = 8;

// The step of `value`, at most kSteps, 0 for `least` and below: of a scale from `least` to `most` in equal parts.
int LinearStep(double value, double least, double most);
// The step of a value above 0 on a scale around 1: by its logarithm, so that 8 is eight times and -8 an eighth.
int RatioStep(double value);

// A cell per (row, column). `step_of`: -kSteps … kSteps, 0 is not drawn; nothing: drawn as absent (class "none").
std::string HeatMap(int rows, int columns, const std::function<std::optional<int>(int row, int column)>& step_of);

// A value per position from left to right; nothing leaves a gap.
struct Line {
  std::string style;  // Class.
  std::vector<std::optional<double>> values;
};
// Lines over a scale of [least, most], positions evenly spaced in cells. A band of class "band" between the first two
// lines if `band`.
std::string Lines(const std::vector<Line>& lines, double least, double most, bool band);

// Bars from below, stacked: parts[i] of class styles[i].
struct Bar {
  std::vector<double> parts;
};
std::string Bars(const std::vector<Bar>& bars, const std::vector<std::string>& styles, double most);

// The smallest of 1, 1.2, 1.6, 2, 3, 4, 5, 6 and 8 times a power of ten that is not below `value`; 1 for 0.
double RoundUp(double value);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_REPORT_PLOT_H_
