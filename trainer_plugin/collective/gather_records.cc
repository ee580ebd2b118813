#include "routing_replay/trainer/gather_records.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

absl::StatusOr<GatheredRecord> Place(const Geometry& geometry, const MicroBatchLayout& layout,
                                     const RecordingRank& rank) {
  auto row_map = BuildRowMap(layout, rank.rows);
  if (!row_map.ok()) return row_map.status();
  auto buffer = BufferLayout::Create(geometry, {.ordinals = rank.ordinals, .rows = row_map->rows});
  if (!buffer.ok()) return buffer.status();
  return GatheredRecord{*std::move(buffer), *std::move(row_map), {}};
}

absl::Status CheckSize(size_t rank, size_t given, int64_t bytes) {
  if (given == static_cast<size_t>(bytes)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("gather.indices: rank ", rank, " gave ", given, " bytes, its layers and rows have ", bytes),
      {.reason = Reason::kLength, .field = "gather.indices"});
}

}  // namespace

absl::StatusOr<std::vector<GatheredRecord>> GatherRecords(Collective& collective, const Geometry& geometry,
                                                          const MicroBatchLayout& layout,
                                                          absl::Span<const RecordingRank> ranks,
                                                          absl::Span<const uint8_t> indices,
                                                          Collective::Deadline deadline) {
  if (ranks.size() != static_cast<size_t>(collective.size())) {
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("gather.ranks: ", ranks.size(), " are not the ", collective.size(), " of the collective"),
        {.reason = Reason::kLength, .field = "gather.ranks"});
  }
  auto parts = AllGatherAnySize(collective, indices, deadline);
  if (!parts.ok()) return parts.status();
  std::vector<GatheredRecord> gathered;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<uint8_t>& part = (*parts)[rank];
    if (ranks[rank].ordinals.empty()) {
      if (absl::Status status = CheckSize(rank, part.size(), 0); !status.ok()) return status;
      continue;
    }
    auto record = Place(geometry, layout, ranks[rank]);
    if (!record.ok()) return record.status();
    if (absl::Status status = CheckSize(rank, part.size(), record->layout.bytes()); !status.ok()) return status;
    record->indices = std::move((*parts)[rank]);
    gathered.push_back(*std::move(record));
  }
  return gathered;
}

std::vector<RankRecord> RecordsOf(absl::Span<const GatheredRecord> gathered) {
  std::vector<RankRecord> records;
  for (const GatheredRecord& record : gathered) records.push_back({record.layout, record.row_map, record.indices});
  return records;
}

}  // namespace routing_replay::trainer
