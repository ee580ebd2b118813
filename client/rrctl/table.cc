#include "client/rrctl/table.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

bool IsBytes(absl::string_view key) { return absl::EndsWith(key, "_bytes") || absl::EndsWith(key, "_bytes_total"); }

std::string Padded(std::string text, size_t width) {
  const auto taken = static_cast<size_t>(DisplayWidth(text));
  text.append(std::max(width, taken) - taken, ' ');
  return text;
}

// A record's objects become lines of their own, which have no value.
struct Line {
  std::string key;
  const Document* value = nullptr;
  int depth = 0;
};

void Flatten(const Document& object, int depth, std::vector<Line>& lines) {
  for (const auto& [key, value] : object.items()) {
    lines.push_back({key, value.is_object() ? nullptr : &value, depth});
    if (value.is_object()) Flatten(value, depth + 1, lines);
  }
}

// A value inside another.
std::string InnerCell(absl::string_view key, const Document& value) {
  if (value.is_array() && value.size() == 2) return absl::StrCat(Cell(key, value[0]), ":", Cell(key, value[1]));
  return Cell(key, value);
}

}  // namespace

std::string Title(absl::string_view key) {
  if (!absl::ConsumeSuffix(&key, "_bytes")) absl::ConsumeSuffix(&key, "_ms");
  return Printable(key);
}

std::string Cell(absl::string_view key, const Document& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return Printable(value.get_ref<const std::string&>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer() && IsBytes(key)) return HumanBytes(value.get<int64_t>());
  if (value.is_number_integer() && absl::EndsWith(key, "_ms")) {
    return HumanDuration(std::chrono::milliseconds(value.get<int64_t>()));
  }
  if (value.is_array()) {
    std::string text;
    for (const Document& element : value) absl::StrAppend(&text, text.empty() ? "" : ", ", InnerCell(key, element));
    return text.empty() ? "-" : text;
  }
  if (value.is_object()) {
    std::string text;
    for (const auto& [name, element] : value.items()) {
      if (element.is_string() && element.get_ref<const std::string&>().empty()) continue;
      absl::StrAppend(&text, text.empty() ? "" : " ", Title(name), " ", InnerCell(name, element));
    }
    return text;
  }
  if (value.is_number_float()) return HumanNumber(value.get<double>());
  return value.dump();
}

void TableWriter::Add(const Document& rows) {
  if (rows.empty()) return;
  const bool first = keys_.empty();
  std::vector<std::string> titles;
  if (first) {
    for (const auto& [key, value] : rows[0].items()) {
      keys_.push_back(key);
      titles.push_back(Title(key));
      widths_.push_back(DisplayWidth(titles.back()));
    }
  }
  std::vector<std::vector<std::string>> lines;
  for (const Document& row : rows) {
    std::vector<std::string>& cells = lines.emplace_back();
    for (size_t i = 0; i < keys_.size(); ++i) {
      cells.push_back(row.contains(keys_[i]) ? Cell(keys_[i], row[keys_[i]]) : "");
      widths_[i] = std::max(widths_[i], static_cast<size_t>(DisplayWidth(cells.back())));
    }
  }
  if (first) WriteLine(titles, /*heading=*/true);
  for (const auto& cells : lines) WriteLine(cells, /*heading=*/false);
}

void TableWriter::WriteLine(const std::vector<std::string>& cells, bool heading) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += i + 1 < cells.size() ? Padded(cells[i], widths_[i] + 2) : cells[i];
  }
  out_ << (heading ? style_.Heading(line) : line) << "\n";
}

void PrintRecord(const Document& object, std::ostream& out, const Style& style,
                 const std::map<std::string, std::string>& notes) {
  std::vector<Line> lines;
  Flatten(object, 0, lines);
  std::map<int, size_t> key_widths, value_widths;  // By depth.
  for (const Line& line : lines) {
    if (line.value == nullptr) continue;
    size_t& key_width = key_widths[line.depth];
    key_width = std::max<size_t>(key_width, DisplayWidth(Title(line.key)));
    if (notes.count(line.key) == 0) continue;
    size_t& value_width = value_widths[line.depth];
    value_width = std::max<size_t>(value_width, DisplayWidth(Cell(line.key, *line.value)));
  }
  for (const Line& line : lines) {
    const size_t width = line.value == nullptr ? 0 : key_widths[line.depth];
    out << std::string(2 * line.depth, ' ') << style.Heading(Padded(Title(line.key), width));
    if (line.value != nullptr) {
      const auto note = notes.find(line.key);
      const std::string cell = Cell(line.key, *line.value);
      out << "  ";
      out << (note == notes.end() ? cell : absl::StrCat(Padded(cell, value_widths[line.depth]), "  ", note->second));
    }
    out << "\n";
  }
}

}  // namespace routing_replay::client
