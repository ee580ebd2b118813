#include "server/store/conformance/trajectory.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/block/block.h"
#include "routing_replay/wire/checksum.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

uint64_t Scramble(uint64_t seed, uint64_t a, uint64_t b) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + a * 0xd1b54a32d192ed03 + b * 0x8cb92ba72f3d8dd7 + 1;
  x = (x ^ x >> 31) * 0x94d049bb133111eb;
  return x ^ x >> 29;
}

absl::Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The offset of each layer's ids in a row.
std::vector<int32_t> LayerOffsets(const Geometry& geometry) {
  std::vector<int32_t> offsets{0};
  for (const LayerRouting& layer : geometry.layers()) offsets.push_back(offsets.back() + layer.top_k);
  return offsets;
}

absl::Status DecodeRows(const Geometry& geometry, const BlockRows& from, Rows& rows) {
  const std::vector<int32_t> offsets = LayerOffsets(geometry);
  for (int64_t row = from.rows.begin; row < from.rows.end; ++row) rows[row] = RowIds(offsets.back());
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const int64_t row = from.rows.begin - from.block.rows.begin, count = from.rows.size();
    Buffer cut(geometry.cut_bytes(i, row, count, from.block.codec));
    const auto crc = CutPlane(geometry, from.block, i, from.rows, cut.span());
    if (!crc.ok()) return crc.status();
    Buffer ids(count * layer.top_k * layer.id_bytes());
    DecodeCut(geometry, i, from.block.codec, geometry.cut_bit_offset(i, row, from.block.codec), count, cut.span(),
              ids.span());
    for (int64_t n = 0; n < count * layer.top_k; ++n) {
      uint16_t id = 0;
      std::memcpy(&id, ids.data() + n * layer.id_bytes(), layer.id_bytes());
      (*rows[from.rows.begin + n / layer.top_k])[offsets[i] + n % layer.top_k] = id;
    }
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t Trajectory::TokenAt(int64_t position) const { return static_cast<uint32_t>(Scramble(tokens, position, 0)); }

RowIds Trajectory::RowAt(const Geometry& geometry, int64_t row) const {
  RowIds ids;
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    for (int32_t k = 0; k < geometry.layer(i).top_k; ++k) {
      ids.push_back(static_cast<uint16_t>(Scramble(routes, row, i * 100 + k) % geometry.layer(i).num_experts));
    }
  }
  return ids;
}

std::string Trajectory::TokenIds(RowRange positions) const {
  std::string bytes;
  for (int64_t i = positions.begin; i < positions.end; ++i) {
    const uint32_t token = TokenAt(i);
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(token >> shift));
  }
  return bytes;
}

uint32_t Trajectory::TokenCheckAt(int64_t rows) const { return Crc32c(BytesOf(TokenIds({0, rows}))); }

Block MakeBlock(const Geometry& geometry, int64_t row_start, const std::vector<RowIds>& rows, Codec codec) {
  Block block;
  block.rows = RowRange::OfSize(row_start, static_cast<int64_t>(rows.size()));
  block.bytes = Buffer(geometry.block_bytes(block.rows.size(), Codec::kRaw));
  const std::vector<int32_t> offsets = LayerOffsets(geometry);
  uint8_t* to = block.bytes.data();
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const int32_t id_bytes = geometry.layer(i).id_bytes();
    for (const RowIds& row : rows) {
      for (int32_t k = offsets[i]; k < offsets[i + 1]; ++k, to += id_bytes) std::memcpy(to, &row[k], id_bytes);
    }
  }
  ComputeCrc(geometry, block);
  return codec == Codec::kRaw ? std::move(block) : *Merge(geometry, {{block.view(), block.rows}}, codec);
}

AppendCommand MakeAppend(const RunInfo& run, const AppendSpec& spec) {
  AppendCommand command{.run = spec.run, .geometry = run.geometry};
  AppendHeader& header = command.header;
  header.sample = spec.sample;
  header.producer = spec.producer;
  header.rows = spec.rows;
  header.unrecorded = spec.unrecorded;
  header.revision = spec.revision;
  header.restart_nonce = spec.restart_nonce;
  header.group = spec.group;
  header.weight_version = spec.weight_version;
  header.weight_label = spec.weight_label;
  header.engine = spec.engine;
  header.seal_num_tokens = spec.seal_num_tokens;
  header.prefix = spec.prefix;
  if (spec.token_ids) header.token_ids = spec.from.TokenIds(spec.rows);
  if (spec.token_check_start) header.token_check_start = spec.from.TokenCheckAt(spec.rows.begin);
  for (RowRange recorded : Subtract(spec.rows, spec.unrecorded)) {
    for (RowRange window : SplitAtWindows(recorded, run.options.block_rows)) {
      for (int64_t begin = window.begin; begin < window.end;) {
        const int64_t end = begin + std::min(spec.max_block_rows, window.end - begin);
        std::vector<RowIds> rows;
        for (int64_t row = begin; row < end; ++row) rows.push_back(spec.from.RowAt(*run.geometry, row));
        command.blocks.push_back(MakeBlock(*run.geometry, begin, rows, spec.codec));
        begin = end;
      }
    }
  }
  return command;
}

absl::StatusOr<Rows> RowsOf(const Geometry& geometry, const SampleSnapshot& snapshot) {
  Rows rows(snapshot.state.committed_rows);
  for (const StoredRows& stored : snapshot.rows) {
    const absl::StatusOr<LoadedBlock> block = Load(stored.block);
    if (!block.ok()) return block.status();
    if (absl::Status status = DecodeRows(geometry, {block->view, stored.rows}, rows); !status.ok()) return status;
  }
  return rows;
}

Rows ExpectedRows(const Geometry& geometry, const Trajectory& from, int64_t rows,
                  absl::Span<const RowRange> unrecorded) {
  Rows expected(rows);
  for (RowRange recorded : Subtract({0, rows}, unrecorded)) {
    for (int64_t row = recorded.begin; row < recorded.end; ++row) expected[row] = from.RowAt(geometry, row);
  }
  return expected;
}

}  // namespace routing_replay::testing
