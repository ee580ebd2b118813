#include "client/rrctl/output.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

// Returns the number of bytes of the UTF-8 character at the start of `text` (not empty); 0 if it is not valid UTF-8.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = byte(0) < 0x80 ? 1 : byte(0) < 0xC2 ? 0 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (byte(0) > 0xF4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xF0 && byte(1) < 0x90);
  const bool no_character = (byte(0) == 0xED && byte(1) > 0x9F) || (byte(0) == 0xF4 && byte(1) > 0x8F);
  return overlong || no_character ? 0 : bytes;
}

// Control characters: C0, DEL, and C1 (U+0080 … U+009F), which some terminals also interpret.
bool IsControl(absl::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return absl::ascii_iscntrl(first) || (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

// Width of UTF-8 text in columns, one per code point.
size_t DisplayWidth(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

bool IsBytes(absl::string_view key) { return absl::EndsWith(key, "_bytes") || absl::EndsWith(key, "_bytes_total"); }

std::string Padded(std::string text, size_t width) {
  const size_t taken = DisplayWidth(text);
  text.append(std::max(width, taken) - taken, ' ');
  return text;
}

// Returns the key in the form that a table shows.
std::string Title(absl::string_view key) {
  if (!absl::ConsumeSuffix(&key, "_bytes")) absl::ConsumeSuffix(&key, "_ms");
  return Printable(key);
}

// In a record, a nested object gets its own heading line, which has no value.
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

// Prints one line per key. Nested objects follow below their key.
void PrintRecord(const Document& object, std::ostream& out) {
  std::vector<Line> lines;
  Flatten(object, 0, lines);
  std::map<int, size_t> widths;  // Widths of the keys that have a value, by depth.
  for (const Line& line : lines) {
    if (line.value == nullptr) continue;
    size_t& width = widths[line.depth];
    width = std::max(width, DisplayWidth(Title(line.key)));
  }
  for (const Line& line : lines) {
    const size_t width = line.value == nullptr ? 0 : widths[line.depth];
    out << std::string(2 * line.depth, ' ') << Padded(Title(line.key), width);
    if (line.value != nullptr) out << "  " << Cell(line.key, *line.value);
    out << "\n";
  }
}

// Formats a value inside another value.
std::string InnerCell(absl::string_view key, const Document& value) {
  if (value.is_array() && value.size() == 2) return absl::StrCat(Cell(key, value[0]), ":", Cell(key, value[1]));
  return Cell(key, value);
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const absl::string_view character = text.substr(0, std::max<size_t>(bytes, 1));
    if (bytes > 0 && !IsControl(character)) {
      absl::StrAppend(&out, character);
    } else {
      for (const char c : character) absl::StrAppendFormat(&out, "\\x%02X", static_cast<unsigned char>(c));
    }
    text.remove_prefix(character.size());
  }
  return out;
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
      widths_[i] = std::max(widths_[i], DisplayWidth(cells.back()));
    }
  }
  if (first) WriteLine(titles);
  for (const auto& cells : lines) WriteLine(cells);
}

void TableWriter::WriteLine(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += i + 1 < cells.size() ? Padded(cells[i], widths_[i] + 2) : cells[i];
  }
  out_ << line << "\n";
}

std::string ToJsonLine(const Document& document) {
  return document.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Document::error_handler_t::replace);
}

void Output::Print(const Document& document, Layout layout) {
  if (format_ == Format::kJson) {
    out_ << ToJsonLine(document) << "\n";
  } else if (layout == Layout::kColumns) {
    TableWriter(out_).Add(document);
  } else if (document.is_array()) {
    for (size_t i = 0; i < document.size(); ++i) {
      if (i > 0) out_ << "\n";
      PrintRecord(document[i], out_);
    }
  } else {
    PrintRecord(document, out_);
  }
}

void Output::PrintWithTable(const Document& document, const std::string& key) {
  if (format_ == Format::kJson) return Print(document, Layout::kRecords);
  Document summary = document;
  summary[key] = document[key].size();
  Print(summary, Layout::kRecords);
  if (!document[key].empty()) out_ << "\n";
  Print(document[key], Layout::kColumns);
}

absl::Status Output::Flush() {
  out_.flush();
  return out_.good() ? absl::OkStatus() : absl::DataLossError("cannot write to standard output");
}

absl::Status Output::Stream::Add(const Document& rows) {
  if (output_.format_ == Format::kTable) {
    table_.Add(rows);
  } else {
    for (const Document& row : rows) {
      output_.out_ << (empty_ ? "[\n" : ",\n") << ToJsonLine(row);
      empty_ = false;
    }
  }
  return output_.Flush();
}

absl::Status Output::Stream::End() {
  if (output_.format_ == Format::kJson) output_.out_ << (empty_ ? "[]\n" : "\n]\n");
  return output_.Flush();
}

}  // namespace routing_replay::client
