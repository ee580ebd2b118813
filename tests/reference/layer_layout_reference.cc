#include "tests/reference/layer_layout_reference.h"

#include <algorithm>
#include <regex>

namespace routing_replay::reference {
namespace {

// Puts the embedding (if it counts), the layers and the loss (if it counts) in one row of slots, and divides the slots
// equally among the chunks. Chunks are ordered by virtual stage, then by pipeline rank.
int32_t EvenFirstLayer(const trainer::LayerSplit& s, int32_t p, int32_t v) {
  const int32_t slots = s.num_layers + s.account_for_embedding + s.account_for_loss;
  const int32_t of_chunk = slots / (s.pipeline_size * s.virtual_stages.value_or(1));
  return std::max(0, (v * s.pipeline_size + p) * of_chunk - s.account_for_embedding);
}

int32_t UnevenFirstLayer(const trainer::LayerSplit& s, int32_t p, int32_t v) {
  const int32_t first = s.first_stage_layers.value_or(0);
  const int32_t last = s.last_stage_layers.value_or(0);
  const int32_t middle = s.num_layers - first - last;
  const int32_t stages = s.pipeline_size - s.first_stage_layers.has_value() - s.last_stage_layers.has_value();
  const int32_t chunks = s.virtual_stages.value_or(1);
  const int32_t start = v * (first / chunks + middle / chunks + last / chunks);
  if (p == 0) return start;
  const int32_t rank_among_middle = s.first_stage_layers ? p - 1 : p;
  return start + first / chunks + (stages == 0 ? 0 : rank_among_middle * (middle / chunks / stages));
}

}  // namespace

int32_t FirstLayer(const trainer::LayerSplit& split, int32_t p, int32_t v) {
  return split.first_stage_layers || split.last_stage_layers ? UnevenFirstLayer(split, p, v)
                                                             : EvenFirstLayer(split, p, v);
}

namespace {

// Does what Megatron does with Python's re.sub: replaces each match by its first group, repeated as often as its second
// group says.
std::string WriteOut(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::string written;
  std::string rest = text;
  for (std::smatch match; std::regex_search(rest, match, regex); rest = match.suffix()) {
    written += match.prefix();
    for (int i = std::stoi(match[2]); i > 0; --i) written += match[1];
  }
  return written + rest;
}

}  // namespace

std::optional<std::vector<std::string>> LayoutStages(const std::string& text) {
  std::string written;
  for (const char c : text) {
    if (c != ',') written.push_back(c);
  }
  written = WriteOut(WriteOut(written, R"(\(([^)]+)\)\*([0-9]+))"), R"((.)\*([0-9]+))");
  std::vector<std::string> stages(1);
  for (const char c : written) {
    if (c == '|') {
      stages.emplace_back();
    } else if (c == 'E' || c == 't' || c == 'm' || c == 'L') {
      stages.back().push_back(c);
    } else {
      return std::nullopt;
    }
  }
  return stages;
}

bool IsModelLayout(const std::vector<std::string>& stages, int32_t pipeline_size, int32_t layers, int32_t mtp) {
  const size_t size = static_cast<size_t>(pipeline_size);
  if (stages.size() % size != 0 || (pipeline_size == 1 && stages.size() > 1)) return false;
  std::string all;
  std::vector<size_t> mtp_stages;
  for (size_t s = 0; s < stages.size(); ++s) {
    all += stages[s];
    if (stages[s].find('m') != std::string::npos) mtp_stages.push_back(s);
  }
  // A whole model is the embedding (E), then all decoder layers (t), then all MTP layers (m), then the loss (L).
  std::string wanted(1, 'E');
  wanted.append(layers, 't').append(mtp, 'm').append(1, 'L');
  const bool in_last_chunk = mtp_stages.empty() || mtp_stages.back() >= stages.size() - size;
  return all == wanted && mtp_stages.size() <= 1 && in_last_chunk;
}

}  // namespace routing_replay::reference
