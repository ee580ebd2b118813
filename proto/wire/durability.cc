#include "routing_replay/wire/durability.h"

namespace routing_replay {

const char* DurabilityName(Durability durability) {
  switch (durability) {
    case Durability::kMemory:
      return "memory";
    case Durability::kWritten:
      return "written";
    case Durability::kSynced:
      return "synced";
  }
  return "unknown";
}

std::optional<Durability> DurabilityFromName(absl::string_view name) {
  for (const Durability durability : {Durability::kMemory, Durability::kWritten, Durability::kSynced}) {
    if (name == DurabilityName(durability)) return durability;
  }
  return std::nullopt;
}

}  // namespace routing_replay
