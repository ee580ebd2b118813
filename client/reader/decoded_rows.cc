#include "client/reader/decoded_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/reader/read_checker.h"
#include "proto/wire/block/block.h"
#include "proto/wire/buffer.h"

namespace routing_replay::client {

PlaneCollector::PlaneCollector(const Geometry& geometry, const ReadRequest& request, std::vector<int32_t> ordinals)
    : geometry_(geometry), request_(request), ordinals_(std::move(ordinals)) {
  for (const int32_t ordinal : ordinals_) {
    top_k_ = std::max<int64_t>(top_k_, geometry_.layer(ordinal).top_k);
    id_bytes_ = std::max(id_bytes_, geometry_.layer(ordinal).id_bytes());
  }
}

std::vector<int32_t> PlaneCollector::LayerIds() const {
  std::vector<int32_t> ids;
  for (const int32_t ordinal : ordinals_) ids.push_back(geometry_.layer(ordinal).layer_id);
  return ids;
}

absl::Status PlaneCollector::OnRecord(const SampleRecord& record) {
  // A second record of the same sample replaces the first one and the rows that came with it.
  if (!samples_.empty() && samples_.back().record.index == record.index) samples_.pop_back();
  SamplePlanes& sample = samples_.emplace_back();
  sample.record = record;
  filled_ = 0;
  if (record.status != SampleStatus::kOk) return absl::OkStatus();
  sample.rows = PromisedRows(request_.samples[record.index], record);
  const int64_t rows = TotalRows(sample.rows);
  if (rows <= kMaxRows) sample.ids = Buffer(BytesOf(rows));
  const bool has_memory = rows == 0 || sample.ids.data() != nullptr;
  if (has_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", rows, " rows of ", layers(), " layers"));
}

absl::Status PlaneCollector::OnPiece(const ReadPiece& piece) {
  SamplePlanes& sample = samples_.back();
  if (piece.layer_begin == 0) row_ = std::exchange(filled_, filled_ + piece.rows.size());
  const int64_t rows = TotalRows(sample.rows);
  absl::Span<const uint8_t> bytes = piece.bytes;
  for (int32_t i = piece.layer_begin; i < piece.layer_begin + piece.layer_count; ++i) {
    const int64_t size = geometry_.cut_bytes_at(ordinals_[i], piece.bit_offset, piece.rows.size(), piece.codec);
    uint8_t* const out = sample.ids.data() + (i * rows + row_) * top_k_ * id_bytes_;
    DecodeInto(out, ordinals_[i], piece, bytes.first(size));
    bytes.remove_prefix(size);
  }
  return absl::OkStatus();
}

void PlaneCollector::DecodeInto(uint8_t* out, int32_t ordinal, const ReadPiece& piece,
                                absl::Span<const uint8_t> cut) const {
  const LayerRouting& layer = geometry_.layer(ordinal);
  const int64_t rows = piece.rows.size();
  const size_t out_bytes = rows * top_k_ * id_bytes_;
  if (layer.top_k == top_k_ && layer.id_bytes() == id_bytes_) {
    DecodeCut(geometry_, ordinal, piece.codec, piece.bit_offset, rows, cut, {out, out_bytes});
    return;
  }
  Buffer narrow(rows * layer.top_k * layer.id_bytes());
  DecodeCut(geometry_, ordinal, piece.codec, piece.bit_offset, rows, cut, narrow.span());
  std::memset(out, 0, out_bytes);
  const uint8_t* from = narrow.data();
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t slot = 0; slot < layer.top_k; ++slot, from += layer.id_bytes()) {
      std::memcpy(out + (row * top_k_ + slot) * id_bytes_, from, layer.id_bytes());
    }
  }
}

std::vector<SampleRows> PlaneCollector::ToRows() const {
  std::vector<SampleRows> decoded;
  for (const SamplePlanes& sample : samples_) {
    SampleRows& rows = decoded.emplace_back(SampleRows{.record = sample.record, .rows = sample.rows});
    const uint8_t* id = sample.ids.data();
    for (const int32_t ordinal : ordinals_) {
      std::vector<uint16_t>& out = rows.layers.emplace_back();
      for (int64_t row = TotalRows(sample.rows); row > 0; --row) {
        for (int64_t slot = 0; slot < top_k_; ++slot, id += id_bytes_) {
          if (slot < geometry_.layer(ordinal).top_k) out.push_back(id_bytes_ == 1 ? id[0] : id[0] | id[1] << 8);
        }
      }
    }
  }
  return decoded;
}

}  // namespace routing_replay::client
