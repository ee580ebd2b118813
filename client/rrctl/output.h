// Where the answers of commands go: tables for people, JSON for programs.
#ifndef CLIENT_RRCTL_OUTPUT_H_
#define CLIENT_RRCTL_OUTPUT_H_

#include <map>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "client/rrctl/table.h"
#include "client/rrctl/terminal.h"

namespace routing_replay::client {

enum class Format { kTable, kJson };

// How a document is shown to people.
enum class Layout {
  kColumns,  // An array of objects, a line each.
  kRecords,  // An object, or an array of them, a line per key.
};

// JSON on one line. Never fails: bytes that are no UTF-8 are replaced.
std::string ToJsonLine(const Document& document);

// The document as text for people, lines ended.
std::string ToText(const Document& document, Layout layout, const Style& style,
                   const std::map<std::string, std::string>& notes = {});

// Not thread-safe.
class Output {
 public:
  Output(std::ostream& out, Format format, Style style) : out_(out), format_(format), style_(style) {}

  Format format() const { return format_; }
  const Style& style() const { return style_; }

  void Print(const Document& document, Layout layout);
  // One array that comes in portions, of which only one is held: a line per element.
  class Stream;
  // Text as it is.
  void Write(absl::string_view text) { out_ << text; }
  // Sends out what is buffered. DATA_LOSS if something written so far was not taken (a full disk, a reader gone).
  absl::Status Flush();
  // Whether everything written so far was taken.
  bool taken() const { return out_.good(); }

 private:
  std::ostream& out_;
  const Format format_;
  const Style style_;
};

class Output::Stream {
 public:
  explicit Stream(Output& output) : output_(output), table_(output.out_, output.style_) {}
  // `rows` is an array of objects. DATA_LOSS as in Flush.
  absl::Status Add(const Document& rows);
  // Without it a JSON array stays open, so that a reader sees that something is missing.
  absl::Status End();

 private:
  Output& output_;
  TableWriter table_;
  bool empty_ = true;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_OUTPUT_H_
