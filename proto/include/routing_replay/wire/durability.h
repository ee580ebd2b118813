// What an acknowledged append has come through.
#ifndef ROUTING_REPLAY_WIRE_DURABILITY_H_
#define ROUTING_REPLAY_WIRE_DURABILITY_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace routing_replay {

// Ascending: each has come through what those before it have. Values are those of the wire (Durability in
// common.proto).
enum class Durability : uint8_t {
  kMemory = 1,   // The memory of a process: lost if that ends.
  kWritten = 2,  // The operating system, or another process: lost if the machine fails.
  kSynced = 3,   // The disk.
};

// "memory", "written", "synced".
const char* DurabilityName(Durability durability);
// Nothing for another name.
std::optional<Durability> DurabilityFromName(absl::string_view name);

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_DURABILITY_H_
