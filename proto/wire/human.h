// Numbers, durations and times as text for people.
#ifndef PROTO_WIRE_HUMAN_H_
#define PROTO_WIRE_HUMAN_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// "1023 B", "12.3 MiB", "300 GiB"
std::string HumanBytes(double bytes);

// "1,234,567"
std::string HumanCount(int64_t count);

// "1 sample", "2 samples": `one` is the singular, here "sample".
std::string Counted(int64_t count, absl::string_view one);

// Three significant digits, but all digits of the integer part: "0.0123", "3.67", "1,234,568".
std::string HumanNumber(double number);

// One unit below a minute, else two, cut off after them: "250 ms", "3.2 s", "5 min 12 s", "3 h 5 min", "2 d 3 h".
std::string HumanDuration(std::chrono::milliseconds duration);

// RFC 3339 in UTC: "2025-01-31T09:30:00.125Z".
std::string Timestamp(std::chrono::system_clock::time_point time);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_HUMAN_H_
