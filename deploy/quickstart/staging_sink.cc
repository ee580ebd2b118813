#include "deploy/quickstart/staging_sink.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::quickstart {

absl::Status StagingSink::OnRecord(const SampleRecord& record) {
  if (record.status != SampleStatus::kOk) {
    return absl::InternalError(
        absl::StrCat("sample ", record.index, " is ", SampleStatusName(record.status), ": ", record.message));
  }
  staging_.unrecorded[sequences_[record.index]] = record.unrecorded;
  return absl::OkStatus();
}

absl::Status StagingSink::OnPiece(const ReadPiece& piece) {
  staging_.pieces.push_back({.sequence = sequences_[piece.sample_index],
                             .layer_begin = piece.layer_begin,
                             .layer_count = piece.layer_count,
                             .rows = piece.rows,
                             .codec = piece.codec,
                             .bit_offset = piece.bit_offset,
                             .offset = static_cast<int64_t>(staging_.bytes.size())});
  staging_.bytes.insert(staging_.bytes.end(), piece.bytes.begin(), piece.bytes.end());
  return absl::OkStatus();
}

}  // namespace routing_replay::quickstart
