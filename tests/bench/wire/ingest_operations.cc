#include "proto/wire/block/bits.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tile.h"
#include "tests/bench/wire/operation_support.h"

namespace routing_replay::bench {
namespace {

Operation Narrow(const WireSample& sample, const std::string& name, DType dtype, absl::Span<const uint8_t> input) {
  Operation operation = MakeOperation(sample, name, input, sample.narrow(), [&sample, dtype, input](uint8_t* out) {
    NarrowIds(dtype, input.data(), 0, 1, sample.ids(), sample.layer().id_bytes(), out);
  });
  operation.vectors = dtype == DType::kI32;
  return operation;
}

Operation TileRows(const WireSample& sample) {
  return MakeOperation(sample, "tile", sample.narrow(), sample.raw().bytes.span(), [&sample](uint8_t* out) {
    const Geometry& geometry = sample.geometry();
    const int64_t stride = geometry.raw_row_bytes(), bytes = stride / geometry.num_moe_layers();
    std::vector<uint8_t*> planes(geometry.num_moe_layers());
    for (const BlockView& block : sample.raw().blocks) {
      for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) {
        planes[l] = out + geometry.plane_offset(l, block.rows.size(), Codec::kRaw);
      }
      Tile(sample.narrow().data() + block.rows.begin * stride, stride, block.rows.size(), bytes, planes);
      out += block.bytes.size();
    }
  });
}

Operation Pack(const WireSample& sample) {
  return MakeOperation(sample, "pack", sample.raw().bytes.span(), sample.packed().bytes.span(),
                       [&sample](uint8_t* out) {
                         const Geometry& geometry = sample.geometry();
                         for (const BlockView& block : sample.raw().blocks) {
                           const int64_t rows = block.rows.size();
                           for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) {
                             PackIds(block.plane(geometry, l).data(), sample.layer().id_bytes(),
                                     geometry.id_bits(l, Codec::kPacked), rows * sample.layer().top_k, out);
                             out += geometry.plane_bytes(l, rows, Codec::kPacked);
                           }
                         }
                       });
}

// The whole work of the client: decode, check, narrow, tile, pack and sum.
Operation EncodeTensor(const WireSample& sample, const std::string& name, DType dtype,
                       absl::Span<const uint8_t> input) {
  const Codec codec = sample.geometry().default_codec();
  const EncodedSample& expected = codec == Codec::kRaw ? sample.raw() : sample.packed();
  const auto blocks = std::make_shared<std::vector<Block>>();
  const auto run = [&sample, dtype, input, codec, blocks](uint8_t*) {
    const Geometry& geometry = sample.geometry();
    auto decoded = DecodeTensor(
        geometry, {.dtype = dtype, .shape = {sample.rows(), geometry.num_moe_layers(), sample.layer().top_k}}, input,
        {.codec = codec});
    *blocks = decoded.ok() ? std::move(decoded->blocks) : std::vector<Block>();
  };
  const auto collect = [blocks](uint8_t* out) {
    for (const Block& block : *blocks) {
      std::memcpy(out, block.bytes.data(), block.bytes.size());
      out += block.bytes.size();
    }
  };
  return MakeOperation(sample, name, input, expected.bytes.span(), run, collect);
}

}  // namespace

std::vector<Operation> IngestOperations(const WireSample& sample) {
  const DType narrow = sample.layer().id_bytes() == 1 ? DType::kU8 : DType::kU16;
  return {Narrow(sample, "narrow-i32", DType::kI32, sample.i32()),
          Narrow(sample, "narrow-i64", DType::kI64, sample.i64()),
          TileRows(sample),
          Pack(sample),
          EncodeTensor(sample, "encode-i16", DType::kI16, sample.i16()),
          EncodeTensor(sample, "encode-i32", DType::kI32, sample.i32()),
          EncodeTensor(sample, "encode-i64", DType::kI64, sample.i64()),
          EncodeTensor(sample, "encode-narrow", narrow, sample.narrow())};
}

}  // namespace routing_replay::bench
