#include "server/quantity.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

struct Unit {
  const char* suffix;
  int64_t factor;
};

constexpr Unit kByteUnits[] = {
    {"", 1}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", int64_t{1} << 40}};
constexpr Unit kTimeUnits[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};

// "4Gi", "4GB", "4g": what was meant can be told.
std::string InsteadOfBytes(absl::string_view digits, absl::string_view suffix) {
  for (const Unit& unit : kByteUnits) {
    const absl::string_view name = unit.suffix;
    if (digits.empty() || name.empty()) continue;
    for (const std::string& near : {std::string(name), std::string(name.substr(0, 1)), std::string(name.substr(0, 2)),
                                    absl::StrCat(name.substr(0, 1), "B")}) {
      if (absl::EqualsIgnoreCase(suffix, near)) return absl::StrCat(digits, name);
    }
  }
  return "a whole number of bytes, or of KiB, MiB, GiB or TiB, such as 4GiB";
}

std::string InsteadOfTime(absl::string_view digits, absl::string_view suffix) {
  if (digits.empty() || !suffix.empty()) return "a whole number of ms, s, m or h, such as 90s";
  return absl::StrCat(digits, "s; or ", digits, "ms, ", digits, "m, ", digits, "h");
}

struct Units {
  const char* what;
  absl::Span<const Unit> all;  // Ascending.
  const char* of_zero;
  // What to write instead of something else, of which the number was read, or nothing.
  std::string (*instead)(absl::string_view digits, absl::string_view suffix);
};
constexpr Units kBytes = {"size", kByteUnits, "", InsteadOfBytes};
constexpr Units kTimes = {"time", kTimeUnits, "s", InsteadOfTime};

std::string Text(int64_t value, const Units& units) {
  if (value == 0) return absl::StrCat("0", units.of_zero);
  const Unit* best = &units.all.front();  // The smallest, which divides everything.
  for (const Unit& unit : units.all) {
    if (value % unit.factor == 0) best = &unit;
  }
  return absl::StrCat(value / best->factor, best->suffix);
}

absl::StatusOr<int64_t> Parse(absl::string_view text, const Units& units, Bounds bounds) {
  size_t count = 0;
  while (count < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[count]))) ++count;
  const absl::string_view digits = text.substr(0, count);
  const absl::string_view suffix = absl::StripAsciiWhitespace(text.substr(count));
  for (const Unit& unit : units.all) {
    int64_t number = 0, value = 0;
    const bool zero = digits == "0" && suffix.empty();
    if (digits.empty() || (suffix != unit.suffix && !zero)) continue;
    const bool huge = !absl::SimpleAtoi(digits, &number) || __builtin_mul_overflow(number, unit.factor, &value);
    if (huge || value > bounds.maximum) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is too much; at most ", Text(bounds.maximum, units)));
    }
    if (value >= bounds.minimum || (value == 0 && bounds.or_none)) return value;
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is too little; at least ", Text(bounds.minimum, units),
                                                   bounds.or_none ? ", or 0 for no bound" : ""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no ", units.what, "; write ", units.instead(digits, suffix)));
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text, Bounds bounds) { return Parse(text, kBytes, bounds); }

absl::StatusOr<milliseconds> ParseTime(absl::string_view text, Bounds bounds) {
  const auto value = Parse(text, kTimes, bounds);
  if (!value.ok()) return value.status();
  return milliseconds(*value);
}

std::string BytesText(int64_t bytes) { return Text(bytes, kBytes); }
std::string TimeText(milliseconds time) { return Text(time.count(), kTimes); }

}  // namespace routing_replay::server
