#include "proto/exported/layout.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "routing_replay/wire/checksum.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr size_t kCrcDigits = 8, kFileDigits = 8, kMostDigits = 18;

std::optional<int64_t> Number(absl::string_view digits) {
  int64_t number = 0;
  const bool all = std::all_of(digits.begin(), digits.end(), [](char c) { return absl::ascii_isdigit(c); });
  if (!all || digits.size() > kMostDigits || !absl::SimpleAtoi(digits, &number)) return std::nullopt;
  return number;
}

bool IsCrc(absl::string_view text) {
  return text.size() == kCrcDigits &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string IndexFileName(int64_t number) { return absl::StrCat("index.", number, ".json"); }

std::optional<int64_t> IndexNumber(absl::string_view name) {
  absl::string_view digits = name;
  if (!absl::ConsumePrefix(&digits, "index.") || !absl::ConsumeSuffix(&digits, ".json")) return std::nullopt;
  const auto number = Number(digits);
  return number && *number > 0 && IndexFileName(*number) == name ? number : std::nullopt;
}

std::string ExportFileName(int64_t number) { return absl::StrFormat("%08d.npy", number); }

std::optional<int64_t> ExportFileNumber(absl::string_view name) {
  absl::string_view digits = name;
  if (!absl::ConsumeSuffix(&digits, ".npy") || digits.size() < kFileDigits) return std::nullopt;
  return Number(digits);
}

std::string ExportMarker::ToText() const { return absl::StrFormat("%s %08x\n", IndexFileName(index), crc32c); }

std::optional<ExportMarker> ExportMarker::FromText(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumeSuffix(&rest, "\n") || rest.size() <= kCrcDigits) return std::nullopt;
  const absl::string_view crc = rest.substr(rest.size() - kCrcDigits);
  rest.remove_suffix(kCrcDigits);
  ExportMarker marker;
  const auto index = absl::ConsumeSuffix(&rest, " ") ? IndexNumber(rest) : std::nullopt;
  if (!index || !IsCrc(crc) || !absl::SimpleHexAtoi(crc, &marker.crc32c)) return std::nullopt;
  marker.index = *index;
  return marker;
}

bool IsFirstVersionsMarker(absl::string_view text) { return absl::ConsumeSuffix(&text, "\n") && IsCrc(text); }

std::string JournalLine(absl::string_view json) { return absl::StrFormat("%08x %s\n", Crc32c(AsBytes(json)), json); }

std::vector<absl::string_view> JournalLines(absl::string_view text) {
  std::vector<absl::string_view> lines;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const absl::string_view line = text.substr(0, end + 1);
    text.remove_prefix(end + 1);
    if (line.size() < kCrcDigits + 2) continue;
    const absl::string_view json = line.substr(kCrcDigits + 1, line.size() - kCrcDigits - 2);
    if (line == JournalLine(json)) lines.push_back(json);
  }
  return lines;
}

absl::Span<const uint8_t> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace wire
}  // namespace routing_replay
