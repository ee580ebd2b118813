#include "tests/chaos/crash_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/checksum.h"

namespace routing_replay::testing {

CrashState CrashState::First(int64_t rows) const {
  CrashState first;
  first.revision = revision;
  for (const Part& part : parts_) {
    const RowRange left = Intersect(part.rows, {0, rows});
    if (!left.empty()) first.parts_.push_back({part.source, left});
  }
  return first;
}

void CrashState::Append(std::shared_ptr<const CrashSource> source, int64_t end) {
  const RowRange more{rows(), end};
  if (!parts_.empty() && parts_.back().source == source) {
    parts_.back().rows.end = end;
  } else {
    parts_.push_back({std::move(source), more});
  }
  token_check = true;
}

LayerRows CrashState::Layers() const {
  LayerRows layers(static_cast<size_t>(CrashGeometry().num_moe_layers()));
  for (const Part& part : parts_) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::vector<uint16_t> more = part.source->routes.Slice(static_cast<int32_t>(i), {part.rows});
      layers[i].insert(layers[i].end(), more.begin(), more.end());
    }
  }
  return layers;
}

std::vector<uint32_t> CrashState::Tokens() const {
  std::vector<uint32_t> tokens;
  for (const Part& part : parts_) {
    const auto begin = part.source->tokens.begin();
    tokens.insert(tokens.end(), begin + part.rows.begin, begin + part.rows.end);
  }
  return tokens;
}

TokenCheck CrashState::Check() const { return {rows(), TokenCheckExtend(0, AsBytes(Tokens()))}; }

bool CrashHistory::Had(int64_t rows) const {
  return std::any_of(states_.begin(), states_.end(), [&](const CrashState& state) { return state.rows() == rows; });
}

void CrashHistory::Ask(CrashState next) {
  states_.push_back(std::move(next));
  pending_ = true;
}

const CrashState* CrashHistory::Kept(const SampleState& state) const {
  for (const CrashState* each : {&last(), &acknowledged()}) {
    if (each->rows() != state.committed_rows || each->revision != state.revision) continue;
    if (state.num_tokens == (each->sealed ? std::optional(each->rows() + 1) : std::nullopt)) return each;
  }
  return nullptr;
}

std::string CrashHistory::Text() const {
  return absl::StrJoin(states(), " ", [](std::string* text, const CrashState& state) {
    absl::StrAppend(text, state.rows(), "@", state.revision);
  });
}

const CrashState* CrashHistory::Find(const LayerRows& layers, int64_t revision) const {
  const size_t k = static_cast<size_t>(CrashGeometry().layer(0).top_k);
  for (const CrashState& state : states()) {
    if (state.revision < revision || static_cast<size_t>(state.rows()) * k != layers.front().size()) continue;
    if (state.Layers() == layers) return &state;
  }
  return nullptr;
}

}  // namespace routing_replay::testing
