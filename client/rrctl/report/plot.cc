#include "client/rrctl/report/plot.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay::client {
namespace {

constexpr double kHeight = 100;  // Of what has no cells.

std::string Open(double width, double height) {
  return absl::StrFormat(R"(<svg viewBox="0 0 %g %g" preserveAspectRatio="none" aria-hidden="true">)", width, height);
}

std::string ClassOf(std::optional<int> step) {
  return !step ? "none" : absl::StrCat(*step < 0 ? "m" : "s", std::abs(*step));
}

std::string Point(double x, double y) { return absl::StrFormat("%.4g %.4g", x, y); }

class Scale {
 public:
  Scale(double least, double most) : least_(least), span_(most > least ? most - least : 1) {}
  double Y(double value) const { return kHeight * (1 - std::clamp((value - least_) / span_, 0.0, 1.0)); }

 private:
  const double least_;
  const double span_;
};

// A position alone is drawn so wide, on both sides of its middle.
constexpr double kAlone = 0.3;

// Calls draw(begin, end) for each run of positions that are there.
void ForEachRun(size_t positions, const std::function<bool(size_t)>& there,
                const std::function<void(size_t begin, size_t end)>& draw) {
  for (size_t begin = 0; begin < positions;) {
    size_t end = begin;
    while (end < positions && there(end)) ++end;
    if (end > begin) draw(begin, end);
    begin = end + 1;
  }
}

double Middle(size_t position) { return static_cast<double>(position) + 0.5; }

std::string LinePath(const Line& line, const Scale& scale) {
  std::string path;
  ForEachRun(
      line.values.size(), [&](size_t i) { return line.values[i].has_value(); },
      [&](size_t begin, size_t end) {
        if (end == begin + 1) {
          absl::StrAppend(&path, "M", Point(Middle(begin) - kAlone, scale.Y(*line.values[begin])), "h", 2 * kAlone);
          return;
        }
        for (size_t i = begin; i < end; ++i) {
          absl::StrAppend(&path, i == begin ? "M" : "L", Point(Middle(i), scale.Y(*line.values[i])));
        }
      });
  return path.empty() ? "" : absl::StrCat(R"(<path class="line )", line.style, R"(" d=")", path, R"("/>)");
}

// A piece for each run of positions where both have values.
std::string BandPath(const Line& low, const Line& high, const Scale& scale) {
  std::string path;
  ForEachRun(
      std::min(low.values.size(), high.values.size()), [&](size_t i) { return low.values[i] && high.values[i]; },
      [&](size_t begin, size_t end) {
        const bool alone = end == begin + 1;
        for (size_t i = begin; i < end; ++i) {
          const std::string point = Point(Middle(i) - (alone ? kAlone : 0), scale.Y(*high.values[i]));
          absl::StrAppend(&path, i == begin ? "M" : "L", point);
        }
        if (alone) absl::StrAppend(&path, "h", 2 * kAlone);
        for (size_t i = end; i > begin; --i) {
          absl::StrAppend(&path, "L", Point(Middle(i - 1) + (alone ? kAlone : 0), scale.Y(*low.values[i - 1])));
        }
        if (alone) absl::StrAppend(&path, "h", -2 * kAlone);
        path += "Z";
      });
  return path.empty() ? "" : absl::StrCat(R"(<path class="band" d=")", path, R"("/>)");
}

}  // namespace

int LinearStep(double value, double least, double most) {
  if (!(value > least) || !(most > least)) return 0;
  return std::clamp(static_cast<int>(std::ceil((value - least) / (most - least) * kSteps)), 1, kSteps);
}

int RatioStep(double value) {
  return static_cast<int>(std::clamp(std::round(std::log2(value) * kSteps / 3), -1.0 * kSteps, 1.0 * kSteps));
}

std::string HeatMap(int rows, int columns, const std::function<std::optional<int>(int row, int column)>& step_of) {
  std::map<std::string, std::string> paths;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns;) {
      const std::optional<int> step = step_of(row, column);
      int end = column + 1;
      while (end < columns && step_of(row, end) == step) ++end;
      if (step != 0) {
        absl::StrAppend(&paths[ClassOf(step)], "M", column, " ", row, "h", end - column, "v1h", column - end, "z");
      }
      column = end;
    }
  }
  std::string svg = Open(std::max(columns, 1), std::max(rows, 1));
  for (const auto& [style, path] : paths) absl::StrAppend(&svg, R"(<path class=")", style, R"(" d=")", path, R"("/>)");
  return svg + "</svg>";
}

std::string Lines(const std::vector<Line>& lines, double least, double most, bool band) {
  size_t positions = 1;
  for (const Line& line : lines) positions = std::max(positions, line.values.size());
  const Scale scale(least, most);
  std::string svg = Open(static_cast<double>(positions), kHeight);
  if (band && lines.size() >= 2) svg += BandPath(lines[0], lines[1], scale);
  for (const Line& line : lines) svg += LinePath(line, scale);
  return svg + "</svg>";
}

std::string Bars(const std::vector<Bar>& bars, const std::vector<std::string>& styles, double most) {
  constexpr double kGap = 0.1;
  std::string svg = Open(static_cast<double>(std::max<size_t>(bars.size(), 1)), kHeight);
  for (size_t i = 0; i < bars.size(); ++i) {
    double below = 0;
    for (size_t part = 0; part < bars[i].parts.size(); ++part) {
      const double height = most > 0 ? kHeight * bars[i].parts[part] / most : 0;
      if (height > 0) {
        absl::StrAppendFormat(&svg, R"(<rect class="%s" x="%.4g" y="%.5g" width="%.2g" height="%.5g"/>)", styles[part],
                              static_cast<double>(i) + kGap / 2, kHeight - below - height, 1 - kGap, height);
      }
      below += height;
    }
  }
  return svg + "</svg>";
}

double RoundUp(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double factor : {1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (value <= factor * power * (1 + 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace routing_replay::client
