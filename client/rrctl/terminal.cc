#include "client/rrctl/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay {
namespace {

constexpr char kReset[] = "\033[0m";

// The bytes of the first element: an ANSI sequence "ESC [ … letter", or one code point. `text` is not empty.
size_t ElementBytes(absl::string_view text) {
  size_t n = 1;
  if (text[0] == '\033') {
    while (n < text.size() && !absl::ascii_isalpha(static_cast<unsigned char>(text[n]))) ++n;
    return n + (n < text.size());
  }
  while (n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) ++n;
  return n;
}

}  // namespace

bool IsTerminal(int file_descriptor) { return isatty(file_descriptor) == 1; }

Style Style::For(int file_descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  const bool wanted = no_colour == nullptr || no_colour[0] == '\0';
  return Style(wanted && term != nullptr && absl::string_view(term) != "dumb" && IsTerminal(file_descriptor));
}

std::string Style::Wrap(absl::string_view begin, absl::string_view text) const {
  return colour_ ? absl::StrCat(begin, text, kReset) : std::string(text);
}

TerminalSize SizeOf(int file_descriptor) {
  winsize size{};
  TerminalSize result;
  if (ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0) {
    result = {.rows = size.ws_row, .columns = size.ws_col};
  }
  return result;
}

std::string Printable(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&out, "\\x%02X", static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
  }
  return out;
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  while (!text.empty()) {
    width += text[0] == '\033' ? 0 : 1;
    text.remove_prefix(ElementBytes(text));
  }
  return width;
}

std::string CutToWidth(absl::string_view text, int columns) {
  size_t end = 0;
  int width = 0;
  bool styled = false;
  while (end < text.size()) {
    const bool sequence = text[end] == '\033';
    if (!sequence && ++width > columns) break;
    styled |= sequence;
    end += ElementBytes(text.substr(end));
  }
  std::string cut(text.substr(0, end));
  if (styled && end < text.size()) cut += kReset;
  return cut;
}

}  // namespace routing_replay
