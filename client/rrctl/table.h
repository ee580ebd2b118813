// JSON documents as text for people.
//
// A key ending in "_bytes" or "_ms" says its unit: the value is shown as "1.2 MiB" or "3.2 s", the key without the
// unit. Null is "-". Nested values are flattened into their cell, a range [3, 17] as "3:17" and without empty texts.
#ifndef CLIENT_RRCTL_TABLE_H_
#define CLIENT_RRCTL_TABLE_H_

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/rrctl/terminal.h"

namespace routing_replay::client {

using Document = nlohmann::ordered_json;

// One line per row below a line of keys, in columns. Rows may come in portions: columns never get narrower, and are
// those of the first row; a row without a key has an empty cell there.
class TableWriter {
 public:
  TableWriter(std::ostream& out, Style style) : out_(out), style_(style) {}
  // `rows` is an array of objects.
  void Add(const Document& rows);

 private:
  void WriteLine(const std::vector<std::string>& cells, bool heading);

  std::ostream& out_;
  const Style style_;
  std::vector<std::string> keys_;
  std::vector<size_t> widths_;
};

// A line per key. Objects inside follow as lines of their own, below their key. `notes` stand behind the values of the
// keys they are for.
void PrintRecord(const Document& object, std::ostream& out, const Style& style,
                 const std::map<std::string, std::string>& notes = {});

// A key, and its value, as in a table.
std::string Title(absl::string_view key);
std::string Cell(absl::string_view key, const Document& value);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TABLE_H_
