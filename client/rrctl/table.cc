#include "client/rrctl/table.h"

#include <algorithm>
#include <cstdio>

namespace routing_replay {
namespace {

std::string Cell(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  return value.dump();
}

void PrintLine(const std::vector<std::string>& cells, const std::vector<size_t>& widths, std::ostream& out) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += cells[i];
    if (i + 1 < cells.size()) line.append(widths[i] - cells[i].size() + 2, ' ');
  }
  out << line << "\n";
}

}  // namespace

void PrintTable(const std::vector<nlohmann::ordered_json>& rows, std::ostream& out) {
  if (rows.empty()) return;
  std::vector<std::vector<std::string>> lines(1);
  for (const auto& [key, value] : rows[0].items()) lines[0].push_back(key);
  for (const auto& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const auto& [key, value] : row.items()) line.push_back(Cell(value));
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const auto& line : lines) PrintLine(line, widths, out);
}

std::string HumanBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace routing_replay
