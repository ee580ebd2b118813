#include "proto/wire/block/block.h"
#include "proto/wire/block/id_check.h"
#include "routing_replay/wire/checksum.h"
#include "tests/bench/wire/operation_support.h"

namespace routing_replay::bench {
namespace {

// Checks the ids of every plane. The output has one byte per plane, 0 if all its ids are legal.
Operation CheckPlanes(const WireSample& sample, const std::string& name, bool duplicates) {
  const size_t planes = sample.raw().blocks.size() * sample.geometry().num_moe_layers();
  const auto legal = std::make_shared<const std::vector<uint8_t>>(planes, 0);
  const auto run = [&sample, duplicates, legal](uint8_t* out) {
    for (const BlockView& block : sample.raw().blocks) {
      for (int32_t l = 0; l < sample.geometry().num_moe_layers(); ++l) {
        const LayerRouting& layer = sample.layer();
        const int32_t top_k = duplicates ? layer.top_k : 1;
        *out++ = IdsLegal(block.plane(sample.geometry(), l), layer.id_bytes(), top_k, layer.num_experts) ? 0 : 1;
      }
    }
  };
  Operation operation = MakeOperation(sample, name, sample.raw().bytes.span(), *legal, run);
  operation.vectors = true;
  return operation;
}

Operation SumPlanes(const WireSample& sample) {
  const auto sums = std::make_shared<std::vector<uint32_t>>();
  for (const std::vector<uint32_t>& block : sample.raw().crcs) sums->insert(sums->end(), block.begin(), block.end());
  const auto run = [&sample, sums](uint8_t* out) {
    for (const BlockView& block : sample.raw().blocks) {
      for (int32_t l = 0; l < sample.geometry().num_moe_layers(); ++l, out += sizeof(uint32_t)) {
        const uint32_t sum = Crc32c(block.plane(sample.geometry(), l));
        std::memcpy(out, &sum, sizeof(sum));
      }
    }
  };
  return MakeOperation(sample, "crc32c", sample.raw().bytes.span(), BytesOf(*sums), run);
}

// Cuts rows out of PACKED planes. The time includes the CRC of the whole plane, checked before the cut, and the CRC of
// the cut, computed after it.
Operation CutPacked(const WireSample& sample) {
  const auto run = [&sample](uint8_t* out) {
    const Geometry& geometry = sample.geometry();
    for (const BlockView& block : sample.packed().blocks) {
      const RowRange rows{block.rows.begin + 1, block.rows.end};
      for (int32_t l = 0; l < geometry.num_moe_layers(); ++l) {
        const auto size = static_cast<size_t>(geometry.cut_bytes(l, 1, rows.size(), Codec::kPacked));
        if (!CutPlane(geometry, block, l, rows, {out, size}).ok()) return;
        out += size;
      }
    }
  };
  return MakeOperation(sample, "cut-packed", sample.packed().bytes.span(), sample.cuts().bytes.span(), run);
}

}  // namespace

std::vector<Operation> ServerOperations(const WireSample& sample) {
  return {SumPlanes(sample), CheckPlanes(sample, "check-range", false), CheckPlanes(sample, "check-duplicates", true),
          CutPacked(sample)};
}

}  // namespace routing_replay::bench
