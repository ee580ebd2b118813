// Sizes and times as settings write them: a whole number and a unit.
#ifndef SERVER_QUANTITY_H_
#define SERVER_QUANTITY_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// What a setting may be, in bytes or milliseconds, both ends included.
struct Bounds {
  int64_t minimum;
  int64_t maximum;
  bool or_none = false;  // 0, too.
};

// "256MiB", "4096". INVALID_ARGUMENT with what to write instead, or with the bound that was missed.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text, Bounds bounds);
// "90s", "500ms"; only 0 needs no unit. Errors as above.
absl::StatusOr<std::chrono::milliseconds> ParseTime(absl::string_view text, Bounds bounds);

// What these read back, in the largest unit that divides it: "256MiB", "0", "90s", "0s".
std::string BytesText(int64_t bytes);
std::string TimeText(std::chrono::milliseconds time);

}  // namespace routing_replay::server

#endif  // SERVER_QUANTITY_H_
