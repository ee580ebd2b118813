// Prints the answers of commands: tables for people, JSON for programs.
//
// A command's answer is a JSON document with exact numbers. In a table, a key that ends in "_bytes" or "_ms" determines
// the unit: the value is shown as "1.2 MiB" or "3.2 s", and the key without the unit. Null is "-". A nested value
// becomes text in one cell: a range [3, 17] becomes "3:17", and empty texts are left out.
#ifndef CLIENT_RRCTL_OUTPUT_H_
#define CLIENT_RRCTL_OUTPUT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

using Document = nlohmann::ordered_json;

enum class Format { kTable, kJson };

// The layout in which a document is shown to people.
enum class Layout {
  kColumns,  // An array of objects, one line each.
  kRecords,  // An object or an array of objects, one line per key.
};

// Replaces control characters, newlines too, and bytes that are not UTF-8 by "\xNN": text from a server must not
// control the terminal.
std::string Printable(absl::string_view text);

// The value, or null.
template <typename T>
Document OrNull(const std::optional<T>& value) {
  return value ? Document(*value) : Document();
}

// Formats a value as a table does.
std::string Cell(absl::string_view key, const Document& value);

// JSON on one line. Never fails: bytes that are not UTF-8 are replaced.
std::string ToJsonLine(const Document& document);

// Prints a line of keys and then one line per row, in columns. The columns are the keys of the first row; a row that
// lacks a key has an empty cell. Rows may come in portions: a column never becomes narrower.
class TableWriter {
 public:
  explicit TableWriter(std::ostream& out) : out_(out) {}
  // `rows` is an array of objects.
  void Add(const Document& rows);

 private:
  void WriteLine(const std::vector<std::string>& cells);

  std::ostream& out_;
  std::vector<std::string> keys_;
  std::vector<size_t> widths_;
};

// Not thread-safe.
class Output {
 public:
  Output(std::ostream& out, Format format) : out_(out), format_(format) {}

  void Print(const Document& document, Layout layout);
  // For people, prints a record with the size of its array `key`, and below it the array as columns. For programs,
  // prints the whole document.
  void PrintWithTable(const Document& document, const std::string& key);
  // Prints an array that arrives in portions, one line per element, and keeps only one portion in memory.
  class Stream;
  void Write(absl::string_view text) { out_ << text; }
  // Writes out what is buffered. DATA_LOSS if any output so far was lost (disk full, or the reader closed the pipe).
  absl::Status Flush();

 private:
  std::ostream& out_;
  const Format format_;
};

class Output::Stream {
 public:
  explicit Stream(Output& output) : output_(output), table_(output.out_) {}
  // `rows` is an array of objects. DATA_LOSS as in Flush.
  absl::Status Add(const Document& rows);
  // Closes a JSON array. If a command fails, do not call this: the array stays open, so that a reader sees that data is
  // missing.
  absl::Status End();

 private:
  Output& output_;
  TableWriter table_;
  bool empty_ = true;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_OUTPUT_H_
