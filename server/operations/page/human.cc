#include "server/operations/page/human.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace routing_replay::page {

std::string HumanCount(int64_t count) {
  std::string text = absl::StrCat(count);
  const int first = count < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string HumanBytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return absl::StrFormat(unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

std::string HumanRate(double per_second) {
  if (per_second == 0) return "0";
  if (per_second >= 100) return HumanCount(std::llround(per_second));
  return absl::StrFormat(per_second >= 1 ? "%.1f" : "%.2g", per_second);
}

std::string HumanDuration(std::chrono::milliseconds duration) {
  const int64_t s = duration.count() / 1000, min = s / 60, h = min / 60, d = h / 24;
  if (d > 0) return absl::StrCat(d, " d ", h % 24, " h");
  if (h > 0) return absl::StrCat(h, " h ", min % 60, " min");
  if (min > 0) return absl::StrCat(min, " min ", s % 60, " s");
  return absl::StrCat(s, " s");
}

}  // namespace routing_replay::page
