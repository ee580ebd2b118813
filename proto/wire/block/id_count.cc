#include "proto/wire/block/id_count.h"

#include <array>
#include <cstring>

#include "proto/wire/block/cut.h"

namespace routing_replay {
namespace {

// Neighbouring ids go to different tables: increments of one cell wait for each other.
constexpr size_t kTables = 4;

void CountBytes(absl::Span<const uint8_t> ids, absl::Span<int64_t> counts) {
  // A block has fewer ids than a cell can count.
  std::array<std::array<uint32_t, 256>, kTables> tables{};
  size_t i = 0;
  for (; i + 8 <= ids.size(); i += 8) {
    uint64_t eight;
    std::memcpy(&eight, ids.data() + i, sizeof(eight));
    for (size_t j = 0; j < 8; ++j) ++tables[j % kTables][(eight >> (8 * j)) & 0xFF];
  }
  for (; i < ids.size(); ++i) ++tables[0][ids[i]];
  for (size_t e = 0; e < counts.size() && e < 256; ++e) {
    for (const auto& table : tables) counts[e] += table[e];
  }
}

void CountWords(absl::Span<const uint8_t> ids, absl::Span<int64_t> counts) {
  for (size_t i = 0; i + 2 <= ids.size(); i += 2) {
    const size_t id = ids[i] | ids[i + 1] << 8;
    if (id < counts.size()) ++counts[id];  // Always: ids were checked at ingest and fit their CRC.
  }
}

}  // namespace

absl::Status CountIds(const Geometry& geometry, const BlockView& block, int32_t ordinal, RowRange rows,
                      absl::Span<int64_t> counts) {
  if (absl::Status status = VerifyPlane(geometry, block, ordinal); !status.ok()) return status;
  const LayerRouting& layer = geometry.layer(ordinal);
  const int64_t first = rows.begin - block.rows.begin;
  const absl::Span<const uint8_t> cut = block.plane(geometry, ordinal)
                                            .subspan(first * geometry.row_bits(ordinal, block.codec) / 8,
                                                     geometry.cut_bytes(ordinal, first, rows.size(), block.codec));
  absl::Span<const uint8_t> ids = cut;
  std::vector<uint8_t> decoded;
  if (block.codec != Codec::kRaw) {
    decoded.resize(rows.size() * layer.top_k * layer.id_bytes());
    DecodeCut(geometry, ordinal, block.codec, geometry.cut_bit_offset(ordinal, first, block.codec), rows.size(), cut,
              absl::MakeSpan(decoded));
    ids = decoded;
  }
  if (layer.id_bytes() == 1) {
    CountBytes(ids, counts);
  } else {
    CountWords(ids, counts);
  }
  return absl::OkStatus();
}

}  // namespace routing_replay
