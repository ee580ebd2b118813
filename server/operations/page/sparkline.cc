#include "server/operations/page/sparkline.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay::server {
namespace {

constexpr double kWidth = 240, kHeight = 60;

}  // namespace

Sparkline MakeSparkline(const std::vector<double>& values, double top) {
  if (values.size() < 2) return {};
  std::string line;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = kWidth * static_cast<double>(i) / static_cast<double>(values.size() - 1);
    const double y = kHeight * (1 - std::clamp(values[i] / top, 0.0, 1.0));
    absl::StrAppendFormat(&line, "%s%.1f %.1f", i == 0 ? "M" : "L", x, y);
  }
  return {line, absl::StrCat(line, "L", kWidth, " ", kHeight, "L0 ", kHeight, "Z")};
}

double RoundTop(const std::vector<double>& values) {
  const double most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  if (most <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double factor : {1, 2, 5}) {
    if (most <= factor * power) return factor * power;
  }
  return 10 * power;
}

double RoundBytesTop(std::vector<double> values) {
  const double most = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  double unit = 1;
  while (most >= 1024 * unit) unit *= 1024;
  for (double& value : values) value /= unit;
  return RoundTop(values) * unit;
}

}  // namespace routing_replay::server
