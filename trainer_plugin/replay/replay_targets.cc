#include "routing_replay/trainer/replay_targets.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {
namespace {

absl::Status Fail(absl::StatusCode code, absl::string_view message, std::optional<int32_t> layer = {}) {
  ErrorDetail detail{.reason = Reason::kField, .field = "targets"};
  detail.layer = layer;
  return MakeError(code, absl::StrCat("targets: ", message), detail);
}

absl::Status CheckPass(const PassKey& pass, absl::Span<const int32_t> layer_ids, int32_t first_slot) {
  if (pass.micro_batch < 0 || pass.chunk < 0 || first_slot < 0) {
    return Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat(ToString(pass), ", slot ", first_slot, ": a number is below 0"));
  }
  if (first_slot > kMaxMoeLayers || layer_ids.size() > static_cast<size_t>(kMaxMoeLayers - first_slot)) {
    return Fail(absl::StatusCode::kInvalidArgument,
                absl::StrCat(ToString(pass), ": ", layer_ids.size(), " layers from slot ", first_slot,
                             " are more than ", kMaxMoeLayers));
  }
  std::set<int32_t> seen;
  for (int32_t layer_id : layer_ids) {
    if (seen.insert(layer_id).second) continue;
    return Fail(absl::StatusCode::kInvalidArgument, absl::StrCat(ToString({pass, layer_id}), " stands twice"),
                layer_id);
  }
  return absl::OkStatus();
}

struct Layer {
  int32_t layer_id = 0;
  int32_t slot = 0;
  bool asked = false;  // In forward.
};

struct Entry {
  PassUse use = PassUse::kTraining;
  int64_t buffer = 0;
  std::vector<Layer> layers;
};

template <typename Layers>
auto FindLayer(Layers& layers, int32_t layer_id) {
  return std::find_if(layers.begin(), layers.end(), [=](const Layer& layer) { return layer.layer_id == layer_id; });
}

absl::Status NotThere(const TargetKey& key, bool has_pass) {
  return Fail(absl::StatusCode::kNotFound,
              absl::StrCat("no ids are kept for ", ToString(key), has_pass ? "" : ", nor for any layer of that pass"),
              key.layer_id);
}

absl::Status CheckAsked(const PassKey& pass, const Entry& entry) {
  for (const Layer& layer : entry.layers) {
    if (layer.asked) continue;
    return Fail(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("the router of ", ToString({pass, layer.layer_id}), " never asked for its ids"),
                layer.layer_id);
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const PassKey& key) {
  return absl::StrCat("step ", key.step, ", micro-batch ", key.micro_batch, ", virtual stage ", key.chunk);
}

std::string ToString(const TargetKey& key) { return absl::StrCat(ToString(key.pass), ", layer ", key.layer_id); }

struct ReplayTargets::State {
  mutable Mutex mutex;
  std::map<PassKey, Entry> passes ABSL_GUARDED_BY(mutex);
};

ReplayTargets::ReplayTargets() : state_(std::make_unique<State>()) {}
ReplayTargets::~ReplayTargets() = default;
ReplayTargets::ReplayTargets(ReplayTargets&&) noexcept = default;
ReplayTargets& ReplayTargets::operator=(ReplayTargets&&) noexcept = default;

absl::Status ReplayTargets::Add(const PassKey& pass, PassUse use, absl::Span<const int32_t> layer_ids, int64_t buffer,
                                int32_t first_slot) {
  if (auto s = CheckPass(pass, layer_ids, first_slot); !s.ok()) return s;
  Entry entry{.use = use, .buffer = buffer};
  for (int32_t layer_id : layer_ids) {
    entry.layers.push_back({.layer_id = layer_id, .slot = first_slot + static_cast<int32_t>(entry.layers.size())});
  }
  MutexLock lock(state_->mutex);
  if (state_->passes.contains(pass)) {
    return Fail(absl::StatusCode::kAlreadyExists, absl::StrCat("ids are kept for ", ToString(pass), " already"));
  }
  // A forward pass without MoE layers asks for nothing.
  if (use == PassUse::kForwardOnly && layer_ids.empty()) return absl::OkStatus();
  state_->passes.emplace(pass, std::move(entry));
  return absl::OkStatus();
}

absl::StatusOr<Target> ReplayTargets::Forward(const TargetKey& key) {
  MutexLock lock(state_->mutex);
  const auto pass = state_->passes.find(key.pass);
  if (pass == state_->passes.end()) return NotThere(key, false);
  Entry& entry = pass->second;
  const auto layer = FindLayer(entry.layers, key.layer_id);
  if (layer == entry.layers.end()) return NotThere(key, true);
  if (layer->asked) {
    return Fail(absl::StatusCode::kFailedPrecondition,
                absl::StrCat("the router of ", ToString(key), " asked for its ids before in the forward pass"),
                key.layer_id);
  }
  const Target target{.buffer = entry.buffer, .slot = layer->slot};
  layer->asked = true;
  if (entry.use == PassUse::kForwardOnly) entry.layers.erase(layer);
  if (entry.layers.empty()) state_->passes.erase(pass);
  return target;
}

absl::StatusOr<Target> ReplayTargets::Recompute(const TargetKey& key) const {
  MutexLock lock(state_->mutex);
  const auto pass = state_->passes.find(key.pass);
  if (pass == state_->passes.end()) return NotThere(key, false);
  const Entry& entry = pass->second;
  const auto layer = FindLayer(entry.layers, key.layer_id);
  if (layer == entry.layers.end()) return NotThere(key, true);
  if (layer->asked) return Target{.buffer = entry.buffer, .slot = layer->slot};
  return Fail(absl::StatusCode::kFailedPrecondition,
              absl::StrCat("recompute of ", ToString(key), " before its forward pass"), key.layer_id);
}

absl::Status ReplayTargets::EndForward(const PassKey& pass) {
  MutexLock lock(state_->mutex);
  const auto found = state_->passes.find(pass);
  if (found == state_->passes.end()) return absl::OkStatus();
  const absl::Status asked = CheckAsked(pass, found->second);
  if (!asked.ok()) state_->passes.erase(found);
  return asked;
}

absl::Status ReplayTargets::Finish(const PassKey& pass) {
  MutexLock lock(state_->mutex);
  const auto found = state_->passes.find(pass);
  if (found == state_->passes.end()) {
    return Fail(absl::StatusCode::kNotFound, absl::StrCat("no ids are kept for ", ToString(pass)));
  }
  const absl::Status asked = CheckAsked(pass, found->second);
  state_->passes.erase(found);
  return asked;
}

absl::Status ReplayTargets::EndStep(int64_t step) {
  MutexLock lock(state_->mutex);
  const auto of_step = [step](const auto& pass) { return pass.first.step == step; };
  const auto first = std::find_if(state_->passes.begin(), state_->passes.end(), of_step);
  if (first == state_->passes.end()) return absl::OkStatus();
  const PassKey pass = first->first;
  absl::Status asked = CheckAsked(pass, first->second);
  const auto passes = std::erase_if(state_->passes, of_step);
  if (!asked.ok()) return asked;
  return Fail(absl::StatusCode::kFailedPrecondition,
              absl::StrCat(passes, " passes were not finished, the first one ", ToString(pass),
                           ": no backward part of it has run. A pass that has none must be forward_only"));
}

int64_t ReplayTargets::size() const {
  MutexLock lock(state_->mutex);
  int64_t size = 0;
  for (const auto& [pass, entry] : state_->passes) size += static_cast<int64_t>(entry.layers.size());
  return size;
}

}  // namespace routing_replay::trainer
