#include "server/store/expert_counts.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/id_count.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

// A sample's entry with its place in the map.
constexpr int64_t kEntryBytes = 128;

absl::StatusOr<ExpertLoad> EmptyLoad(const Geometry& geometry, absl::Span<const int32_t> layers) {
  ExpertLoad load;
  for (const LayerRouting& layer : geometry.layers()) {
    if (layers.empty()) load.layers.push_back({layer.layer_id, std::vector<int64_t>(layer.num_experts)});
  }
  for (const int32_t layer_id : layers) {
    const std::optional<int32_t> ordinal = geometry.FindOrdinal(layer_id);
    if (!ordinal) {
      ErrorDetail detail{.reason = Reason::kField, .field = "layers"};
      detail.layer = layer_id;
      return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("layers: ", layer_id, " is no MoE layer"),
                       detail);
    }
    load.layers.push_back({layer_id, std::vector<int64_t>(geometry.layer(*ordinal).num_experts)});
  }
  return load;
}

}  // namespace

CountTable::CountTable(const Geometry& geometry) {
  begins_.push_back(0);
  for (const LayerRouting& layer : geometry.layers()) begins_.push_back(begins_.back() + layer.num_experts);
  counts_.resize(begins_.back());
}

absl::Status CountTable::Add(const Geometry& geometry, const BlockRows& rows) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const absl::Span<int64_t> counts = absl::MakeSpan(counts_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
    if (absl::Status status = CountIds(geometry, rows.block, i, rows.rows, counts); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertLoad> ExpertCounts::Count(Producer producer, const std::optional<GroupRange>& groups,
                                               const Samples& samples, absl::Span<const int32_t> layers,
                                               const std::function<bool()>& stop) {
  absl::StatusOr<ExpertLoad> load = EmptyLoad(*geometry_, layers);
  if (!load.ok()) return load.status();
  ForgetOthers(producer, groups, samples);
  for (const Samples::value_type& group : samples) {
    if (absl::Status status = AddGroup(producer, group, stop, *load); !status.ok()) return status;
  }
  return load;
}

absl::Status ExpertCounts::AddGroup(Producer producer, const Samples::value_type& samples,
                                    const std::function<bool()>& stop, ExpertLoad& load) {
  const Geometry& geometry = *geometry_;
  const int64_t group = samples.first;
  std::shared_ptr<Group> kept;
  {
    MutexLock lock(mutex_);
    std::shared_ptr<Group>& slot = groups_[{producer, group}];
    if (slot == nullptr) slot = std::make_shared<Group>(geometry);
    kept = slot;
    kept->asked = true;
  }
  absl::Status status;
  bool keep = false;
  {
    MutexLock lock(kept->mutex);
    status = Update(*kept, samples, stop);
    keep = Charge(*kept) && (status.ok() || absl::IsCancelled(status));
    if (status.ok()) {
      for (ExpertLoad::Layer& layer : load.layers) {
        const absl::Span<const int64_t> counts = kept->table.of(*geometry.FindOrdinal(layer.layer_id));
        for (size_t e = 0; e < counts.size(); ++e) layer.counts[e] += counts[e];
      }
      for (const auto& [birth, counted] : kept->samples) load.rows += counted.recorded_rows;
      load.samples += static_cast<int64_t>(kept->samples.size());
      keep = keep && !kept->samples.empty();
    }
  }
  if (!keep) {
    MutexLock lock(mutex_);
    const auto it = groups_.find({producer, group});
    if (it != groups_.end() && it->second == kept) groups_.erase(it);
  }
  return status;
}

absl::Status ExpertCounts::Update(Group& group, const Samples::value_type& samples, const std::function<bool()>& stop) {
  // Anew at most once: then nothing is known that could be wrong.
  for (bool again = true; again;) {
    again = false;
    std::set<uint64_t> present;
    for (const std::shared_ptr<const CountedSample>& sample : samples.second) {
      if (stop()) return absl::CancelledError("the caller waits no longer");
      present.insert(sample->birth());
      const absl::StatusOr<bool> fits = CountSample(group, samples.first, *sample);
      if (!fits.ok()) return fits.status();
      again = again || !*fits;
      if (again) break;
    }
    for (const auto& [birth, counted] : group.samples) again = again || !present.contains(birth);
    if (!again) break;
    group.table.Reset();
    group.samples.clear();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ExpertCounts::CountSample(Group& group, int64_t number, const CountedSample& sample) {
  const auto known = group.samples.find(sample.birth());
  const Counted before = known == group.samples.end() ? Counted{} : known->second;
  const absl::StatusOr<std::optional<CountedSample::RowsSince>> since = sample.RecordedSince(before.rows);
  if (!since.ok()) return since.status();
  const std::optional<CountedSample::RowsSince>& rows = *since;
  const bool here = rows.has_value() && rows->group == number;
  if (known != group.samples.end() && (!here || rows->revision != before.revision)) return false;
  if (!here) return true;
  Counted& counted = group.samples[sample.birth()];
  for (const RowPiece& piece : rows->pieces) {
    const absl::StatusOr<LoadedBlock> loaded = Load(piece.stored);
    absl::Status status = loaded.ok() ? group.table.Add(*geometry_, {loaded->view, piece.rows}) : loaded.status();
    if (!status.ok()) return WithSample(status, sample.id());
    counted.recorded_rows += piece.rows.size();
  }
  counted.revision = rows->revision;
  counted.rows = rows->committed_rows;
  return true;
}

bool ExpertCounts::Charge(Group& group) const {
  const int64_t bytes = group.table.bytes() + static_cast<int64_t>(group.samples.size()) * kEntryBytes;
  ByteReservation pool = group.charge.Take();
  if (bytes > pool.bytes()) {
    absl::StatusOr<ByteReservation> more = budget_.Reserve(bytes - pool.bytes());
    if (!more.ok()) return false;
    pool.Merge(*std::move(more));
  }
  group.charge = StoredCharge(pool.Split(bytes), usage_);
  return true;
}

void ExpertCounts::Forget(Producer producer, int64_t group) {
  std::shared_ptr<Group> gone;
  MutexLock lock(mutex_);
  const auto it = groups_.find({producer, group});
  if (it == groups_.end()) return;
  gone = std::move(it->second);
  groups_.erase(it);
}

void ExpertCounts::ForgetOthers(Producer producer, const std::optional<GroupRange>& range, const Samples& samples) {
  ForgetThose([&](const Key& key, const Group&) {
    const auto& [of, group] = key;
    return of == producer && (!range || range->contains(group)) && !samples.contains(group);
  });
}

void ExpertCounts::ForgetUnasked() {
  ForgetThose([](const Key&, Group& group) { return !group.asked.exchange(false); });
}

void ExpertCounts::ForgetThose(const std::function<bool(const Key&, Group&)>& which) {
  std::vector<std::shared_ptr<Group>> gone;
  MutexLock lock(mutex_);
  std::erase_if(groups_, [&](auto& entry) {
    if (!which(entry.first, *entry.second)) return false;
    gone.push_back(std::move(entry.second));
    return true;
  });
}

void ExpertCounts::Clear() {
  std::map<Key, std::shared_ptr<Group>> gone;
  MutexLock lock(mutex_);
  std::swap(gone, groups_);
}

}  // namespace routing_replay
