// Hybrid patterns: one symbol per layer of a model that mixes Mamba, attention and MoE layers, as Megatron-Core's
// hybrid_layer_pattern (formerly hybrid_override_pattern) writes them (parse_hybrid_pattern).
#ifndef ROUTING_REPLAY_TRAINER_HYBRID_PATTERN_H_
#define ROUTING_REPLAY_TRAINER_HYBRID_PATTERN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::trainer {

struct HybridPattern {
  // The symbols between "|", one string if there is none: stage s = v·P + p is chunk v of pipeline rank p. Every symbol
  // (M G * D + - E) is a decoder layer, and layer ids count all of them; those of E carry routes.
  std::vector<std::string> stages;
  std::vector<int32_t> moe_layer_ids;  // Of the symbols E, ascending.
  std::string mtp;                     // The symbols of one MTP depth; empty without MTP.
  int32_t mtp_depths = 0;              // How often they are there.

  int32_t num_layers() const;
  // Layers of this symbol in the decoder and in all MTP depths (Megatron's get_hybrid_layer_counts).
  int32_t Count(char symbol) const;
  friend bool operator==(const HybridPattern&, const HybridPattern&) = default;
};

// "M*ME|MEME/*E/*E": the decoder, and behind each "/" one MTP depth, all alike. INVALID_ARGUMENT (kField, field
// "split.hybrid_pattern") for a symbol that is none, for "|" in a MTP depth, for depths that differ, and for "*" beside
// "D" or "+": a model has one kind of attention.
absl::StatusOr<HybridPattern> ParseHybridPattern(absl::string_view text);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_HYBRID_PATTERN_H_
