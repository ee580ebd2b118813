// What is known of the terminal, if there is one.
#ifndef CLIENT_RRCTL_TERMINAL_H_
#define CLIENT_RRCTL_TERMINAL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace routing_replay::client {

// Emphasis as ANSI sequences, or as nothing. Bytes that control a terminal must not be in the text.
class Style {
 public:
  explicit Style(bool colour) : colour_(colour) {}
  // Colours only on a terminal, not where TERM is "dumb" or NO_COLOR is set to anything (no-color.org).
  static Style For(int file_descriptor);

  std::string Heading(absl::string_view text) const { return Wrap("\033[1m", text); }
  std::string Error(absl::string_view text) const { return Wrap("\033[1;31m", text); }
  bool colour() const { return colour_; }

 private:
  std::string Wrap(absl::string_view begin, absl::string_view text) const;
  bool colour_;
};

bool IsTerminal(int file_descriptor);

// Whether `file_descriptor` is a pipe that nobody reads any more.
bool ReaderIsGone(int file_descriptor);

struct TerminalSize {
  int rows = 24;
  int columns = 80;
};
TerminalSize SizeOf(int file_descriptor);

// `text` with every control character shown as "\xNN": what comes from a server must not steer the terminal. Newlines
// too.
std::string Printable(absl::string_view text);

// Columns that UTF-8 text takes, a column per code point; bytes of ANSI sequences take none.
int DisplayWidth(absl::string_view text);
// The longest beginning that takes at most `columns`, with every ANSI sequence in it ended.
std::string CutToWidth(absl::string_view text, int columns);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_TERMINAL_H_
