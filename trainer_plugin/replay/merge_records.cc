#include "routing_replay/trainer/merge_records.h"

#include <cstring>
#include <map>
#include <optional>

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

// The records that have a layer, with the layer's slab in each.
struct LayerSource {
  std::vector<int32_t> records;
  std::vector<absl::Span<const uint8_t>> slabs;
};

LayerSource FindLayer(absl::Span<const RankRecord> records, int32_t ordinal) {
  LayerSource source;
  for (size_t i = 0; i < records.size(); ++i) {
    const BufferLayout& layout = records[i].layout;
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      if (layout.ordinal(slot) != ordinal) continue;
      source.records.push_back(static_cast<int32_t>(i));
      source.slabs.push_back(layout.slab(records[i].indices, slot));
    }
  }
  return source;
}

class Merger {
 public:
  Merger(const Geometry& geometry, const MicroBatchLayout& layout, absl::Span<const RankRecord> records,
         absl::Span<const std::string> samples)
      : geometry_(geometry), layout_(layout), records_(records), samples_(samples) {
    for (const SequenceShape& shape : layout.sequences) merged_.push_back({.rows = shape.recorded_rows});
  }

  // Adds the plane of the layer to every sequence.
  absl::Status Add(int32_t ordinal) {
    const LayerSource source = FindLayer(records_, ordinal);
    if (source.records.empty()) return LayerMissing(geometry_.layer(ordinal).layer_id);
    const auto merges = MergeOf(source.records);
    if (!merges.ok()) return WithLayer(merges.status(), geometry_.layer(ordinal).layer_id);
    for (size_t i = 0; i < merged_.size(); ++i) {
      const int64_t offset = static_cast<int64_t>(merged_[i].planes.size());
      merged_[i].planes.resize(offset + geometry_.plane_bytes(ordinal, merged_[i].rows, Codec::kRaw));
      const absl::Span<uint8_t> plane = absl::MakeSpan(merged_[i].planes).subspan(offset);
      const int64_t row_bytes = geometry_.plane_bytes(ordinal, 1, Codec::kRaw);
      for (const RecordRun& part : (*merges)[i].runs) Copy(part, source, row_bytes, plane);
      for (const RecordRun& part : (*merges)[i].copies) {
        RR_RETURN_IF_ERROR(Compare(part, source, row_bytes, plane, geometry_.layer(ordinal).layer_id));
      }
    }
    return absl::OkStatus();
  }

  std::vector<MergedSequence> Take() { return std::move(merged_); }

 private:
  // Returns how to merge these records. The answer is cached, because most layers are in the same records as their
  // neighbours.
  absl::StatusOr<absl::Span<const SequenceMerge>> MergeOf(const std::vector<int32_t>& records) {
    const auto found = merges_.find(records);
    if (found != merges_.end()) return absl::MakeConstSpan(found->second);
    std::vector<RowMap> maps;
    for (int32_t record : records) maps.push_back(records_[record].row_map);
    RR_ASSIGN_OR_RETURN(auto merge, MergeRows(layout_, maps, samples_));
    return absl::MakeConstSpan(merges_.emplace(records, std::move(merge)).first->second);
  }

  static void Copy(const RecordRun& part, const LayerSource& source, int64_t row_bytes, absl::Span<uint8_t> plane) {
    const uint8_t* from = source.slabs[part.record].data() + part.run.local_row * row_bytes;
    uint8_t* to = plane.data() + part.run.row * row_bytes;
    if (part.run.stride == 1) {
      std::memcpy(to, from, part.run.count * row_bytes);
      return;
    }
    for (int64_t i = 0; i < part.run.count; ++i) {
      std::memcpy(to + i * row_bytes, from + i * part.run.stride * row_bytes, row_bytes);
    }
  }

  absl::Status Compare(const RecordRun& part, const LayerSource& source, int64_t row_bytes,
                       absl::Span<const uint8_t> plane, int32_t layer_id) const {
    const uint8_t* copy = source.slabs[part.record].data() + part.run.local_row * row_bytes;
    const uint8_t* first = plane.data() + part.run.row * row_bytes;
    for (int64_t i = 0; i < part.run.count; ++i) {
      if (std::memcmp(first + i * row_bytes, copy + i * part.run.stride * row_bytes, row_bytes) == 0) continue;
      return Conflict(part, source.records[part.record], part.run.row + i, layer_id);
    }
    return absl::OkStatus();
  }

  absl::Status Conflict(const RecordRun& part, int32_t record, int64_t row, int32_t layer_id) const {
    ErrorDetail detail{.reason = Reason::kConflictingRows, .field = "merge.records", .row = row, .layer = layer_id};
    std::string name;
    if (!samples_.empty()) {
      detail.sample = samples_[part.run.sequence];
      name = absl::StrCat(" (", detail.sample, ")");
    }
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("merge.records: record ", record, " has other ids than those before it for row ", row,
                                  " of sequence ", part.run.sequence, name, ", layer ", layer_id),
                     detail);
  }

  static absl::Status LayerMissing(int32_t layer_id) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("merge.records: no record has layer ", layer_id),
                     {.reason = Reason::kNotCommitted, .field = "merge.records", .layer = layer_id});
  }

  static absl::Status WithLayer(const absl::Status& status, int32_t layer_id) {
    std::optional<ErrorDetail> detail = GetErrorDetail(status);
    if (!detail) return status;
    detail->layer = layer_id;
    return MakeError(status.code(), absl::StrCat(status.message(), ", layer ", layer_id), *detail);
  }

  const Geometry& geometry_;
  const MicroBatchLayout& layout_;
  const absl::Span<const RankRecord> records_;
  const absl::Span<const std::string> samples_;
  // For each set of records that have a layer: how to merge these records.
  std::map<std::vector<int32_t>, std::vector<SequenceMerge>> merges_;
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
