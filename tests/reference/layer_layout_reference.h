// Slow and obvious: where each decoder layer is, by the closed forms of each kind of split. Shares no code with what it
// checks.
#ifndef TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
#define TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "routing_replay/trainer/layers.h"

namespace routing_replay::reference {

// First layer of chunk v of pipeline rank p. `split` must be valid, without a layout or a pattern.
int32_t FirstLayer(const trainer::LayerSplit& split, int32_t p, int32_t v);

// The stages of a layout's text, by the two substitutions that Megatron writes it out with; nothing if it rejects.
// Repeats must fit an int.
std::optional<std::vector<std::string>> LayoutStages(const std::string& text);

// Whether stages are a whole model of so many decoder and MTP layers, each on one chunk.
bool IsModelLayout(const std::vector<std::string>& stages, int32_t pipeline_size, int32_t layers, int32_t mtp);

}  // namespace routing_replay::reference

#endif  // TESTS_REFERENCE_LAYER_LAYOUT_REFERENCE_H_
