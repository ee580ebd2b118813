#include "client/rrctl/human.h"

#include <cmath>
#include <cstdio>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace routing_replay {

std::string HumanBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  // What would be shown as 1024.0 is shown in the next unit.
  for (; std::abs(value) >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string HumanCount(int64_t count) {
  std::string text = absl::StrCat(count);
  const size_t first_digit = count < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string HumanDuration(std::chrono::milliseconds duration) {
  const int64_t ms = duration.count();
  const int64_t seconds = ms / 1000;
  if (ms < 1000) return absl::StrCat(ms, " ms");
  if (seconds < 60) return absl::StrCat(seconds, ".", ms % 1000 / 100, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m ", seconds % 60, "s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, "h ", seconds / 60 % 60, "m");
  return absl::StrCat(seconds / 86400, "d ", seconds / 3600 % 24, "h");
}

std::string Timestamp(std::chrono::system_clock::time_point time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone());
}

absl::StatusOr<std::chrono::milliseconds> ParseInterval(absl::string_view text) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not a time like 2, 0.5 or 500ms"));
  }
  if (!(duration >= absl::Milliseconds(1) && duration <= absl::Hours(24))) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not between 1ms and 24h"));
  }
  return absl::ToChronoMilliseconds(duration);
}

}  // namespace routing_replay
