#include "client/reader/read_rows.h"

#include "proto/wire/block/cut.h"
#include "proto/wire/buffer.h"

namespace routing_replay::client {

absl::Status RowCollector::OnRecord(const SampleRecord& record) {
  // The second record of a sample takes back what came before.
  if (!samples_.empty() && samples_.back().record.index == record.index) samples_.pop_back();
  SampleRows& sample = samples_.emplace_back();
  sample.record = record;
  sample.layers.resize(ordinals_.size());
  return absl::OkStatus();
}

absl::Status RowCollector::OnPiece(const ReadPiece& piece) {
  SampleRows& sample = samples_.back();
  if (piece.layer_begin == 0) AppendMerged(sample.rows, piece.rows);
  absl::Span<const uint8_t> bytes = piece.bytes;
  for (int32_t i = piece.layer_begin; i < piece.layer_begin + piece.layer_count; ++i) {
    const LayerRouting& layer = geometry_.layer(ordinals_[i]);
    const int64_t cut = geometry_.cut_bytes_at(ordinals_[i], piece.bit_offset, piece.rows.size(), piece.codec);
    const int64_t ids = piece.rows.size() * layer.top_k;
    Buffer decoded(ids * layer.id_bytes());
    DecodeCut(geometry_, ordinals_[i], piece.codec, piece.bit_offset, piece.rows.size(), bytes.first(cut),
              decoded.span());
    bytes.remove_prefix(cut);
    std::vector<uint16_t>& out = sample.layers[i];
    for (int64_t n = 0; n < ids; ++n) {
      const uint8_t* id = decoded.data() + n * layer.id_bytes();
      out.push_back(layer.id_bytes() == 1 ? id[0] : static_cast<uint16_t>(id[0] | id[1] << 8));
    }
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::client
