#include "proto/wire/human.h"

#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace routing_replay {
inline namespace wire {

std::string HumanBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  // A value that would print as 1024 moves on to the next unit.
  for (; std::abs(bytes) >= 1023.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  const int digits = unit == 0 || std::abs(bytes) >= 99.95 ? 0 : 1;
  return absl::StrFormat("%.*f %s", digits, bytes, kUnits[unit]);
}

std::string HumanCount(int64_t count) {
  std::string text = absl::StrCat(count);
  const size_t first_digit = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string Counted(int64_t count, absl::string_view one) {
  return absl::StrCat(HumanCount(count), " ", one, count == 1 ? "" : "s");
}

std::string HumanNumber(double number) {
  const double size = std::abs(number);
  return size >= 99.95 && size < 1e18 ? HumanCount(std::llround(number)) : absl::StrFormat("%.3g", number);
}

std::string HumanDuration(std::chrono::milliseconds duration) {
  const int64_t ms = duration.count();
  const int64_t seconds = ms / 1000;
  if (ms < 1000) return absl::StrCat(ms, " ms");
  if (seconds < 60) return absl::StrCat(seconds, ".", ms % 1000 / 100, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
  return absl::StrCat(seconds / 86400, " d ", seconds / 3600 % 24, " h");
}

std::string Timestamp(std::chrono::system_clock::time_point time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone());
}

}  // namespace wire
}  // namespace routing_replay
