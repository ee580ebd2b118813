#include <algorithm>
#include <functional>

#include "client/checkpoint/run_portions.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/block/id_check.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Looks at nothing but what came.
class CountingSink final : public ReadSink {
 public:
  absl::Status OnRecord(const SampleRecord& record) override {
    const auto index = static_cast<size_t>(record.index);
    const bool withdrawn = index < records_.size();
    if (!withdrawn) {
      records_.emplace_back();
      rows_.emplace_back();
      withdrawn_.emplace_back();
    }
    records_[index] = record;
    rows_[index] = 0;
    withdrawn_[index] = withdrawn;
    return absl::OkStatus();
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    bytes_ += static_cast<int64_t>(piece.bytes.size());
    if (piece.layer_begin == 0) rows_.back() += piece.rows.size();
    return absl::OkStatus();
  }

  const std::vector<SampleRecord>& records() const { return records_; }
  int64_t rows(size_t index) const { return rows_[index]; }
  // Whether its rows had begun to come before it turned out to be lost.
  bool withdrawn(size_t index) const { return withdrawn_[index]; }
  int64_t bytes() const { return bytes_; }

 private:
  std::vector<SampleRecord> records_;
  std::vector<int64_t> rows_;
  std::vector<bool> withdrawn_;
  int64_t bytes_ = 0;
};

// The first of [0, count) of which `is_bad` says so, where it says so of all of them together: is_bad(begin, end).
int64_t FirstBad(int64_t count, const std::function<bool(int64_t, int64_t)>& is_bad) {
  int64_t begin = 0, end = count;
  while (end - begin > 1) {
    const int64_t middle = begin + (end - begin) / 2;
    if (is_bad(begin, middle)) {
      end = middle;
    } else {
      begin = middle;
    }
  }
  return begin;
}

class Verifier {
 public:
  Verifier(Run& run, const VerifyOptions& options) : run_(run), options_(options) {}

  absl::StatusOr<VerifyOutcome> Verify() {
    const auto samples = run_.List(options_.groups, options_.producer);
    if (!samples.ok()) return samples.status();
    progress_.total = static_cast<int64_t>(samples->size());
    absl::Span<const SampleState> left = *samples;
    while (!left.empty()) {
      const size_t count =
          PortionOf(left.size(), [&](size_t i) { return left[i].committed_rows * run_.geometry().raw_row_bytes(); });
      if (absl::Status status = VerifySome(left.first(count)); !status.ok()) return status;
      left.remove_prefix(count);
      progress_.samples += static_cast<int64_t>(count);
      progress_.bytes = outcome_.bytes;
      if (options_.on_progress) options_.on_progress(progress_);
    }
    if (absl::Status status = CheckSameRun(run_, options_.producer); !status.ok()) return status;
    return std::move(outcome_);
  }

 private:
  absl::Status VerifySome(absl::Span<const SampleState> samples) {
    while (!samples.empty()) {
      ReadRequest request{.producer = options_.producer};
      for (const SampleState& state : samples) request.samples.push_back({.sample = state.sample});
      CountingSink sink;
      const absl::Status status = run_.Read(std::move(request), sink, options_.read_timeout);
      outcome_.bytes += sink.bytes();
      const size_t whole = status.ok() ? samples.size() : DamagedIndex(status, samples);
      if (whole > samples.size()) return status;
      for (size_t i = 0; i < whole; ++i) Judge(samples[i], sink, i);
      if (status.ok()) return absl::OkStatus();
      // The read ended at this one; the ones behind it have not been looked at.
      const ErrorDetail detail = *GetErrorDetail(status);
      ++outcome_.samples;
      outcome_.damaged.push_back({samples[whole].sample, detail.row, detail.layer, std::string(status.message())});
      samples.remove_prefix(whole + 1);
    }
    return absl::OkStatus();
  }

  // Which one a read failed at for its bytes; out of range where that is not why.
  static size_t DamagedIndex(const absl::Status& status, absl::Span<const SampleState> samples) {
    const auto detail = GetErrorDetail(status);
    if (!absl::IsDataLoss(status) || !detail || detail->reason != Reason::kChecksum) return samples.size() + 1;
    const auto found = std::find_if(samples.begin(), samples.end(),
                                    [&](const SampleState& state) { return state.sample == detail->sample; });
    return found == samples.end() ? samples.size() + 1 : static_cast<size_t>(found - samples.begin());
  }

  void Judge(const SampleState& state, const CountingSink& sink, size_t index) {
    const SampleRecord& record = sink.records()[index];
    if (record.status == SampleStatus::kNotFound) return;  // Released meanwhile.
    ++outcome_.samples;
    outcome_.rows += sink.rows(index);
    if (record.status != SampleStatus::kLost) return;
    DamagedSample& damaged = outcome_.damaged.emplace_back();
    damaged.sample = state.sample;
    damaged.what = record.message;
    if (sink.withdrawn(index)) Locate(state, damaged);
  }

  // The server says that a sample is damaged, not where.
  void Locate(const SampleState& state, DamagedSample& damaged) {
    const int64_t window = run_.settings().block_rows;
    const Geometry& geometry = run_.geometry();
    const auto rows = [&](int64_t begin, int64_t end) {
      return RowRange{begin * window, std::min(end * window, state.committed_rows)};
    };
    const int64_t bad = FirstBad(WindowCount(state.committed_rows, window),
                                 [&](int64_t begin, int64_t end) { return IsBad(state.sample, rows(begin, end), {}); });
    const int64_t layer = FirstBad(geometry.num_moe_layers(), [&](int64_t begin, int64_t end) {
      std::vector<int32_t> ids;
      for (int64_t i = begin; i < end; ++i) ids.push_back(geometry.layer(static_cast<int32_t>(i)).layer_id);
      return IsBad(state.sample, rows(bad, bad + 1), std::move(ids));
    });
    const int32_t id = geometry.layer(static_cast<int32_t>(layer)).layer_id;
    if (!IsBad(state.sample, rows(bad, bad + 1), {id})) return;  // It has changed meanwhile.
    damaged.row = rows(bad, bad + 1).begin;
    damaged.layer = id;
  }

  bool IsBad(const std::string& sample, RowRange rows, std::vector<int32_t> layers) {
    CountingSink sink;
    const absl::Status status = run_.Read(
        {.producer = options_.producer, .layers = std::move(layers), .samples = {{.sample = sample, .rows = {rows}}}},
        sink, options_.read_timeout);
    if (!status.ok()) return absl::IsDataLoss(status);
    return sink.records()[0].status == SampleStatus::kLost;
  }

  Run& run_;
  const VerifyOptions& options_;
  CheckpointProgress progress_;
  VerifyOutcome outcome_;
};

// One layer's ids of consecutive rows, as FindIdFault takes them.
struct Plane {
  std::vector<uint8_t> ids;
  int64_t rows = 0;
};

// From [rows][MoE layers][K]; ends before an id that is wider than its layer's are.
Plane PlaneOf(const Geometry& geometry, int32_t ordinal, absl::Span<const uint8_t> ids, int64_t rows) {
  const LayerRouting& layer = geometry.layer(ordinal);
  const int64_t width = geometry.max_id_bytes(), cell = geometry.max_top_k() * width;
  Plane plane;
  for (; plane.rows < rows; ++plane.rows) {
    std::vector<uint8_t> row;
    for (int32_t k = 0; k < layer.top_k; ++k) {
      const uint8_t* id = ids.data() + (plane.rows * geometry.num_moe_layers() + ordinal) * cell + k * width;
      if (layer.id_bytes() < width && id[1] != 0) return plane;
      row.insert(row.end(), id, id + layer.id_bytes());
    }
    plane.ids.insert(plane.ids.end(), row.begin(), row.end());
  }
  return plane;
}

// The row of a sample that its file has in a place.
int64_t RowAt(const ExportedSample& sample, int64_t place) {
  for (const RowRange range : Subtract({0, sample.num_tokens - 1}, sample.unrecorded)) {
    if (place < range.size()) return range.begin + place;
    place -= range.size();
  }
  return sample.num_tokens - 1;
}

// A CRC of the whole file does not say where it is damaged; ids that nobody can have appended do.
void Locate(const std::filesystem::path& directory, const Geometry& geometry, const ExportedSample& sample,
            DamagedSample& damaged) {
  const auto file = ReadExportedIds(directory, geometry, sample, /*damaged_too=*/true);
  if (!file.ok()) return;
  int64_t first = sample.recorded_rows();
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting& layer = geometry.layer(ordinal);
    const Plane plane = PlaneOf(geometry, ordinal, file->ids(), first);
    const auto fault = FindIdFault(layer, plane.ids, plane.rows, /*duplicates=*/true);
    const int64_t place = fault ? fault->row : plane.rows;
    if (place == first) continue;
    first = place;
    damaged.row = RowAt(sample, place);
    damaged.layer = layer.layer_id;
  }
}

}  // namespace

absl::StatusOr<VerifyOutcome> VerifyRun(Run& run, const VerifyOptions& options) {
  return Verifier(run, options).Verify();
}

absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory, const VerifyOptions& options) {
  const auto exported = ReadExportedRun(directory);
  if (!exported.ok()) return exported.status();
  std::vector<const ExportedSample*> samples;
  for (const ExportedSample& sample : exported->samples) {
    if (InGroups(options.groups, sample.group)) samples.push_back(&sample);
  }
  std::sort(samples.begin(), samples.end(), [](const auto* a, const auto* b) { return a->sample < b->sample; });
  VerifyOutcome outcome;
  for (const ExportedSample* sample : samples) {
    ++outcome.samples;
    outcome.bytes += sample->file_bytes;
    const absl::Status status = ReadExportedIds(directory, exported->geometry, *sample).status();
    if (status.ok()) {
      outcome.rows += sample->recorded_rows();
    } else {
      DamagedSample& damaged = outcome.damaged.emplace_back();
      damaged.sample = sample->sample;
      damaged.what = std::string(status.message());
      Locate(directory, exported->geometry, *sample, damaged);
    }
    if (options.on_progress) {
      options.on_progress(
          {.samples = outcome.samples, .total = static_cast<int64_t>(samples.size()), .bytes = outcome.bytes});
    }
  }
  return outcome;
}

}  // namespace routing_replay
