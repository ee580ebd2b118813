#include "client/rrctl/interval.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace routing_replay::client {

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

}  // namespace routing_replay::client
