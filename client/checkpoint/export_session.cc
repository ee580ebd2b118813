#include "client/checkpoint/export_session.h"

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "client/checkpoint/portions.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr int kMaxAttempts = 8;

bool InGroups(const std::optional<std::pair<int64_t, int64_t>>& groups, int64_t group) {
  return !groups || (group >= groups->first && group < groups->second);
}

bool SameContent(const ExportedSample& there, const SampleState& state) {
  return there.content_id == state.content_id && there.revision == state.revision &&
         there.num_tokens == state.num_tokens;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExportSession>> ExportSession::Open(const std::filesystem::path& directory,
                                                                   const std::string& run, const Geometry& geometry,
                                                                   const Scope& scope, DurableFiles& files) {
  auto exporter = RunExporter::Continue(directory, run, scope.producer, geometry, files);
  if (!exporter.ok()) return exporter.status();
  return std::unique_ptr<ExportSession>(new ExportSession(*std::move(exporter), scope));
}

void ExportSession::OnList(absl::Span<const SampleState> samples) {
  std::unordered_set<std::string> in_run, taken_back;
  for (const SampleState& state : samples) in_run.insert(state.sample);
  for (const SampleState& state : samples) {
    if (!InGroups(scope_.groups, state.group)) {
      if (exporter_->Find(state.sample) != nullptr) exporter_->SetGroup(state.sample, state.group);
    } else if (state.sealed()) {
      OnSealed(state);
    } else {
      ++outcome_.unsealed;
      taken_back.insert(state.sample);
    }
  }
  outcome_.dropped = exporter_->DropIf([&](const ExportedSample& sample) {
    const bool missing = in_run.count(sample.sample) == 0 && InGroups(scope_.groups, sample.group);
    return taken_back.count(sample.sample) > 0 || (scope_.drop_missing && missing);
  });
}

void ExportSession::OnSealed(const SampleState& state) {
  ++progress_.total;
  const ExportedSample* there = exporter_->Find(state.sample);
  if (there != nullptr && SameContent(*there, state)) {
    exporter_->SetGroup(state.sample, state.group);
    ++progress_.samples;
    return;
  }
  queue_.push_back({state.sample, state.committed_rows * exporter_->contents().geometry.raw_row_bytes()});
}

const std::vector<std::string>& ExportSession::Next() {
  if (!names_.empty()) return names_;
  for (size_t left = PortionOf(queue_.size(), [this](size_t i) { return queue_[i].bytes; }); left > 0; --left) {
    names_.push_back(queue_.front().sample);
    reading_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return names_;
}

absl::Status ExportSession::OnRows(absl::Span<const SampleState> states, absl::Span<SamplePlanes> read) {
  if (read.size() != reading_.size()) {
    return absl::InternalError(absl::StrCat(read.size(), " samples were read, ", reading_.size(), " were asked for"));
  }
  std::unordered_map<std::string, const SampleState*> by_name;
  for (const SampleState& state : states) by_name[state.sample] = &state;
  std::vector<Wanted> reading = std::exchange(reading_, {});
  names_.clear();
  for (size_t i = 0; i < reading.size(); ++i) {
    const auto state = by_name.find(reading[i].sample);
    const absl::Status status =
        OnSample(std::move(reading[i]), state == by_name.end() ? nullptr : state->second, read[i]);
    if (!status.ok()) return status;
    read[i].ids = Buffer();
  }
  return absl::OkStatus();
}

absl::Status ExportSession::OnSample(Wanted wanted, const SampleState* state, SamplePlanes& read) {
  const SampleRecord& record = read.record;
  if (record.status == SampleStatus::kLost) {
    unread_.Update(MakeError(absl::StatusCode::kDataLoss,
                             absl::StrCat("sample ", wanted.sample, " was lost: ", record.message),
                             {.sample = wanted.sample, .revision = record.revision}));
    return absl::OkStatus();
  }
  const bool there = record.status == SampleStatus::kOk || record.status == SampleStatus::kNotRecorded;
  if (state == nullptr || record.status == SampleStatus::kNotFound) {  // Released meanwhile.
    --progress_.total;
    return absl::OkStatus();
  }
  if (!state->sealed() || !there || !record.num_tokens) {  // Truncated meanwhile.
    --progress_.total;
    ++outcome_.unsealed;
    return absl::OkStatus();
  }
  if (record.content_id == state->content_id && record.revision == state->revision) return Write(*state, read);
  if (++wanted.attempts < kMaxAttempts) {
    queue_.push_back(std::move(wanted));
    return absl::OkStatus();
  }
  unread_.Update(MakeError(absl::StatusCode::kAborted,
                           absl::StrCat("sample ", wanted.sample, " changes whenever it is read"),
                           {.sample = wanted.sample, .revision = record.revision}));
  return absl::OkStatus();
}

absl::Status ExportSession::Write(const SampleState& state, const SamplePlanes& read) {
  ExportedSample sample{.sample = state.sample,
                        .group = state.group,
                        .num_tokens = *state.num_tokens,
                        .revision = state.revision,
                        .content_id = state.content_id,
                        .unrecorded = read.record.unrecorded,
                        .weights = read.record.weights};
  if (state.token_check) sample.token_checks = {*state.token_check};
  const std::vector<uint8_t> ids = RowMajor(read);
  if (absl::Status status = exporter_->Add(std::move(sample), ids); !status.ok()) return status;
  ++progress_.samples;
  ++outcome_.written;
  progress_.bytes += static_cast<int64_t>(ids.size());
  return absl::OkStatus();
}

std::vector<uint8_t> ExportSession::RowMajor(const SamplePlanes& read) const {
  const Geometry& geometry = exporter_->contents().geometry;
  const auto layers = static_cast<size_t>(geometry.num_moe_layers()), rows = static_cast<size_t>(TotalRows(read.rows));
  const size_t cell = static_cast<size_t>(geometry.max_top_k()) * static_cast<size_t>(geometry.max_id_bytes());
  std::vector<uint8_t> out(read.ids.size());
  for (size_t layer = 0; layer < layers; ++layer) {
    const uint8_t* plane = read.ids.data() + layer * rows * cell;
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(out.data() + (row * layers + layer) * cell, plane + row * cell, cell);
    }
  }
  return out;
}

absl::StatusOr<ExportOutcome> ExportSession::Finish() {
  const absl::Status status = exporter_->Finish();
  if (absl::IsDataLoss(status)) {  // Of a file that an export before this one wrote. All else is there.
    unread_.Update(status);
  } else if (!status.ok()) {
    return status;
  }
  outcome_.samples = static_cast<int64_t>(exporter_->contents().samples.size());
  outcome_.bytes = progress_.bytes;
  return outcome_;
}

}  // namespace routing_replay::client
