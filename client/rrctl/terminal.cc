#include "client/rrctl/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay::client {
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

// The bytes of the UTF-8 character that `text` begins with, 0 if it is none. `text` is not empty.
size_t CharacterBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = byte(0) < 0x80 ? 1 : byte(0) < 0xC2 ? 0 : byte(0) < 0xE0 ? 2 : byte(0) < 0xF0 ? 3 : 4;
  if (byte(0) > 0xF4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xF0 && byte(1) < 0x90);
  return overlong ? 0 : bytes;
}

// C0, DEL, and C1 (U+0080 … U+009F), which some terminals obey too.
bool IsControl(absl::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return absl::ascii_iscntrl(first) || (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
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

bool ReaderIsGone(int file_descriptor) {
  pollfd end{.fd = file_descriptor, .events = 0, .revents = 0};
  return poll(&end, 1, 0) == 1 && (end.revents & POLLERR) != 0;
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

}  // namespace routing_replay::client
