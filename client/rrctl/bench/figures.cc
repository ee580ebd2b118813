#include "client/rrctl/bench/figures.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

std::string Show(double value, const std::string& unit) {
  if (unit == "bytes/s") return absl::StrCat(HumanBytes(std::llround(value)), "/s");
  if (unit == "s") return value < 1 ? absl::StrFormat("%.2f ms", value * 1000) : absl::StrFormat("%.2f s", value);
  return absl::StrFormat("%.0f %s", value, unit);
}

}  // namespace

double Quantile(std::vector<double> values, double fraction) {
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  const auto at = values.begin() + std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Document Figure(const std::string& name, std::vector<double> values, const std::string& unit) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {{"name", name}, {"median", median}, {"min", values.front()}, {"max", values.back()},
          {"unit", unit}, {"floor", nullptr}, {"ratio", nullptr}};
}

Document DescribeHost() {
  utsname names{};
  uname(&names);
  return {{"cpus", std::thread::hardware_concurrency()}, {"machine", names.machine}, {"kernel", names.release}};
}

Document FigureTable(const Document& figures) {
  Document rows = Document::array();
  for (const Document& figure : figures) {
    const auto unit = figure["unit"].get<std::string>();
    Document& row = rows.emplace_back(Document{{"figure", figure["name"]}});
    for (const char* key : {"median", "min", "max"}) row[key] = Show(figure[key].get<double>(), unit);
  }
  return rows;
}

std::string FigureCsv(const Document& figures) {
  std::string text = "figure,median,min,max,unit\n";
  for (const Document& figure : figures) {
    absl::StrAppend(&text, figure["name"].get<std::string>(), ",", figure["median"].dump(), ",", figure["min"].dump(),
                    ",", figure["max"].dump(), ",", figure["unit"].get<std::string>(), "\n");
  }
  return text;
}

}  // namespace routing_replay::client
