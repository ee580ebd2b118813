// Takes random bytes for a tensor of an engine. DecodeTensor must either reject them with INVALID_ARGUMENT or return
// blocks that pass every check.
//
// The first kHeaderBytes bytes of an input choose the description and the options; the rest is the payload.
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "proto/wire/payload/tensor_payload.h"
#include "tests/fuzz/smoke.h"

namespace routing_replay {
namespace {

constexpr size_t kHeaderBytes = 12;

Geometry MakeGeometry(uint8_t choice) {
  if (choice % 2 == 0) return Geometry::Uniform(2, 64, 4);
  return *Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {256, 300}, .top_k = {1, 3}});
}

// Small, mostly valid numbers, so that many inputs get as far as the check of the ids.
TensorDescription MakeDescription(const uint8_t* header, size_t payload_bytes) {
  TensorDescription d;
  d.encoding = static_cast<Encoding>(1 + header[1] % 4);
  d.compression = static_cast<Compression>(1 + header[2] % 2);
  d.raw_size = header[3] % 8 == 0 ? static_cast<int64_t>(payload_bytes) : header[3] * 8;
  d.dtype = static_cast<DType>(header[4] % 8);
  if (header[5] % 4 != 0) d.shape = {header[6], header[7] % 8, header[8] % 8};
  d.layer_basis = static_cast<LayerBasis>(header[9] % 4);
  if (d.layer_basis == LayerBasis::kExplicit) d.layer_ids = {header[9] / 4 % 4, header[9] / 16 % 4};
  return d;
}

bool HasDuplicates(const Geometry& geometry, const BlockView& block) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const int32_t id_bytes = layer.id_bytes();
    std::vector<uint8_t> ids(geometry.plane_bytes(i, block.rows.size(), Codec::kRaw));
    DecodeCut(geometry, i, block.codec, 0, block.rows.size(), block.plane(geometry, i), absl::MakeSpan(ids));
    for (const uint8_t* row = ids.data(); row != ids.data() + ids.size(); row += layer.top_k * id_bytes) {
      std::set<std::vector<uint8_t>> seen;
      for (int32_t k = 0; k < layer.top_k; ++k) seen.emplace(row + k * id_bytes, row + (k + 1) * id_bytes);
      if (static_cast<int32_t>(seen.size()) < layer.top_k) return true;
    }
  }
  return false;
}

void CheckRows(const Geometry& geometry, const DecodeOptions& options, const DecodedRows& decoded) {
  int64_t rows = TotalRows(decoded.unrecorded);
  Require(CheckNormal(decoded.unrecorded, decoded.rows).ok(), "unrecorded rows are not a normal list");
  for (const Block& block : decoded.blocks) {
    Require(decoded.rows.contains(block.rows), "a block lies outside the rows");
    Require(Clip(decoded.unrecorded, block.rows).empty(), "a block holds unrecorded rows");
    Require(CheckShape(geometry, block.view(), options.block_rows).ok(), "a block has a wrong shape");
    Require(CheckCrc(geometry, block.view()).ok(), "a block has a wrong CRC");
    Require(CheckIds(geometry, block.view()).ok(), "a block has illegal ids");
    Require(!HasDuplicates(geometry, block.view()), "a row has the same id twice");
    rows += block.rows.size();
  }
  Require(rows == decoded.rows.size(), "rows are missing");
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace routing_replay;
  if (size < kHeaderBytes) return 0;
  const absl::Span<const uint8_t> payload(data + kHeaderBytes, size - kHeaderBytes);
  const Geometry geometry = MakeGeometry(data[0]);
  DecodeOptions options{.row_start = data[10],
                        .block_rows = 32 << data[0] / 2 % 3,
                        .codec = data[0] / 8 % 2 == 0 ? Codec::kRaw : Codec::kPacked,
                        .max_payload_bytes = 4096};
  if (data[11] != 0) options.unrecorded = {RowRange::OfSize(data[10] + data[11] / 16, data[11] % 16)};
  const auto decoded = DecodeTensor(geometry, MakeDescription(data, payload.size()), payload, options);
  if (decoded.ok()) {
    CheckRows(geometry, options, *decoded);
  } else {
    Require(decoded.status().code() == absl::StatusCode::kInvalidArgument, "the code is not INVALID_ARGUMENT");
  }
  return 0;
}
