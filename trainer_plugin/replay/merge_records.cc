#include "routing_replay/trainer/merge_records.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/trainer/rows.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckRecord(const Geometry& geometry, size_t index, const RankRecord& record) {
  const auto reject = [index](Reason reason, absl::string_view what) {
    return Invalid(reason, "merge.records", absl::StrCat("record ", index, " ", what));
  };
  if (!(record.layout.geometry() == geometry)) return reject(Reason::kGeometryMismatch, "has another geometry");
  if (record.row_map.rows != record.layout.rows()) {
    return reject(Reason::kLength,
                  absl::StrCat("has a row map of ", record.row_map.rows, " rows, expected ", record.layout.rows()));
  }
  if (static_cast<int64_t>(record.indices.size()) != record.layout.bytes()) {
    return reject(Reason::kLength,
                  absl::StrCat("has ", record.indices.size(), " bytes, expected ", record.layout.bytes()));
  }
  return absl::OkStatus();
}

// The rows of one sequence in one layer.
struct Plane {
  uint8_t* ids = nullptr;   // [rows][K]
  std::vector<bool> there;  // Per row: true once a record had it.
};

class Merger {
 public:
  Merger(const Geometry& geometry, const MicroBatchLayout& layout, absl::Span<const RankRecord> records,
         absl::Span<const std::string> samples)
      : geometry_(geometry), records_(records), samples_(samples) {
    for (const SequenceShape& shape : layout.sequences) merged_.push_back({.rows = shape.recorded_rows});
  }

  // Adds the plane of the layer to every sequence.
  absl::Status Add(int32_t ordinal) {
    std::vector<Plane> planes;
    for (MergedSequence& merged : merged_) {
      const size_t offset = merged.planes.size();
      merged.planes.resize(offset + geometry_.plane_bytes(ordinal, merged.rows, Codec::kRaw));
      planes.push_back({merged.planes.data() + offset, std::vector<bool>(merged.rows)});
    }
    for (const RankRecord& record : records_) {
      for (int32_t slot = 0; slot < record.layout.num_layers(); ++slot) {
        if (record.layout.ordinal(slot) != ordinal) continue;
        RR_RETURN_IF_ERROR(TakeRows(record, slot, planes));
      }
    }
    for (size_t i = 0; i < planes.size(); ++i) {
      const std::vector<bool>& there = planes[i].there;
      const auto missing = std::find(there.begin(), there.end(), false);
      if (missing == there.end()) continue;
      return Error(Reason::kNotCommitted, i, missing - there.begin(), geometry_.layer(ordinal).layer_id,
                   "is in no record");
    }
    return absl::OkStatus();
  }

  std::vector<MergedSequence> Take() { return std::move(merged_); }

 private:
  // Copies the rows that the record has of a layer. Rows that an earlier record has, too, must be equal.
  absl::Status TakeRows(const RankRecord& record, int32_t slot, std::vector<Plane>& planes) const {
    const int64_t row_bytes = record.layout.row_bytes(slot);
    const uint8_t* slab = record.layout.slab(record.indices, slot).data();
    for (const RowRun& run : record.row_map.runs) {
      if (run.state != RowState::kReplayed) continue;
      Plane& plane = planes[run.sequence];
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t row = run.row + i;
        const uint8_t* ids = slab + (run.local_row + i * run.stride) * row_bytes;
        if (!plane.there[row]) {
          std::memcpy(plane.ids + row * row_bytes, ids, row_bytes);
          plane.there[row] = true;
        } else if (std::memcmp(plane.ids + row * row_bytes, ids, row_bytes) != 0) {
          return Error(Reason::kConflictingRows, run.sequence, row, record.layout.layer(slot).layer_id,
                       "differs between two records");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Error(Reason reason, size_t sequence, int64_t row, int32_t layer_id, absl::string_view what) const {
    ErrorDetail detail{.reason = reason, .field = "merge.records", .row = row, .layer = layer_id};
    if (!samples_.empty()) detail.sample = samples_[sequence];
    const std::string name = samples_.empty() ? "" : absl::StrCat(" (", detail.sample, ")");
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("merge.records: row ", row, " of sequence ", sequence, name, ", layer ", layer_id, ", ", what),
        detail);
  }

  const Geometry& geometry_;
  const absl::Span<const RankRecord> records_;
  const absl::Span<const std::string> samples_;
  std::vector<MergedSequence> merged_;
};

}  // namespace

absl::StatusOr<std::vector<MergedSequence>> MergeRecords(const Geometry& geometry, const MicroBatchLayout& layout,
                                                         absl::Span<const RankRecord> records,
                                                         absl::Span<const std::string> samples) {
  for (size_t i = 0; i < records.size(); ++i) {
    RR_RETURN_IF_ERROR(CheckRecord(geometry, i, records[i]));
  }
  Merger merger(geometry, layout, records, samples);
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    RR_RETURN_IF_ERROR(merger.Add(ordinal));
  }
  return merger.Take();
}

}  // namespace routing_replay::trainer
