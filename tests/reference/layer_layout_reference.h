// Slow and obvious reference for the owner of each decoder layer: the closed form of each kind of split. Shares no code
// with the code under test.
#ifndef TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
#define TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routing_replay/trainer/layers.h"

namespace routing_replay::reference {

// First layer of chunk v of pipeline rank p. `split` must be valid and have neither a layout nor a pattern.
int32_t FirstLayer(const trainer::LayerSplit& split, int32_t p, int32_t v);

// The stages of a layout text, expanded by Megatron's two regular-expression substitutions; nullopt if Megatron rejects
// it. Repeat counts must fit an int.
std::optional<std::vector<std::string>> LayoutStages(const std::string& text);

// Whether the stages form a whole model with these numbers of decoder and MTP layers.
bool IsModelLayout(const std::vector<std::string>& stages, int32_t pipeline_size, int32_t layers, int32_t mtp);

}  // namespace routing_replay::reference

#endif  // TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
