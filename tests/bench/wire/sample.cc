#include "tests/bench/wire/sample.h"

#include <algorithm>
#include <cstring>

#include "routing_replay/wire/checksum.h"

namespace routing_replay::bench {
namespace {

constexpr uint64_t kSeed = 1;

// Writes bit by bit, starting at bit `offset` of `out`.
void PackSlowly(absl::Span<const uint16_t> ids, int32_t width, int32_t offset, absl::Span<uint8_t> out) {
  std::fill(out.begin(), out.end(), 0);
  int64_t bit = offset;
  for (const uint16_t id : ids) {
    for (int32_t i = 0; i < width; ++i, ++bit) out[bit / 8] |= static_cast<uint8_t>((id >> i & 1) << bit % 8);
  }
}

void StoreSlowly(absl::Span<const uint16_t> ids, int32_t id_bytes, uint8_t* out) {
  for (const uint16_t id : ids) {
    for (int32_t i = 0; i < id_bytes; ++i) *out++ = static_cast<uint8_t>(id >> (8 * i));
  }
}

template <typename T>
Buffer Widen(const std::vector<uint16_t>& ids) {
  Buffer out(ids.size() * sizeof(T));
  uint8_t* to = out.data();
  for (const T id : ids) {
    std::memcpy(to, &id, sizeof(T));
    to += sizeof(T);
  }
  return out;
}

}  // namespace

WireSample::WireSample(const std::string& model, const testing::LatentConfig& config, int64_t rows)
    : model_(model),
      geometry_(Geometry::Uniform(config.layers, config.num_experts, config.top_k)),
      rows_(rows),
      ids_(testing::LatentGenerator(config, kSeed).Generate(0, rows).routes.ids) {
  MakeRows();
  raw_ = Encode(Codec::kRaw);
  packed_ = Encode(Codec::kPacked);
  MakeCuts();
}

void WireSample::MakeRows() {
  i16_ = Widen<int16_t>(ids_);
  i32_ = Widen<int32_t>(ids_);
  i64_ = Widen<int64_t>(ids_);
  narrow_ = Buffer(rows_ * geometry_.raw_row_bytes());
  StoreSlowly(ids_, layer().id_bytes(), narrow_.data());
  layers_ = Buffer(narrow_.size());
  std::vector<uint16_t> ids;
  for (int32_t l = 0; l < geometry_.num_moe_layers(); ++l) {
    for (int64_t row = 0; row < rows_; ++row) {
      for (int32_t k = 0; k < layer().top_k; ++k) ids.push_back(IdAt(row, l, k));
    }
  }
  StoreSlowly(ids, layer().id_bytes(), layers_.data());
}

EncodedSample WireSample::Encode(Codec codec) const {
  EncodedSample out{.codec = codec};
  std::vector<RowRange> windows;
  int64_t bytes = 0;
  for (int64_t row = 0; row < rows_; row += kDefaultBlockRows) {
    windows.push_back({row, std::min<int64_t>(row + kDefaultBlockRows, rows_)});
    bytes += geometry_.block_bytes(windows.back().size(), codec);
  }
  out.bytes = Buffer(bytes);
  out.crcs.resize(windows.size());
  absl::Span<uint8_t> rest = out.bytes.span();
  for (size_t i = 0; i < windows.size(); ++i) {
    const RowRange rows = windows[i];
    const absl::Span<uint8_t> block = rest.first(geometry_.block_bytes(rows.size(), codec));
    rest.remove_prefix(block.size());
    for (int32_t l = 0; l < geometry_.num_moe_layers(); ++l) {
      std::vector<uint16_t> ids;
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        for (int32_t k = 0; k < layer().top_k; ++k) ids.push_back(IdAt(row, l, k));
      }
      const absl::Span<uint8_t> plane =
          block.subspan(geometry_.plane_offset(l, rows.size(), codec), geometry_.plane_bytes(l, rows.size(), codec));
      PackSlowly(ids, geometry_.id_bits(l, codec), 0, plane);
      out.crcs[i].push_back(Crc32c(plane));
    }
    out.blocks.push_back({rows, codec, out.crcs[i], block});
  }
  return out;
}

void WireSample::MakeCuts() {
  std::vector<std::vector<uint8_t>> cuts;
  std::vector<uint16_t> all;
  size_t bytes = 0;
  for (const BlockView& block : packed_.blocks) {
    for (int32_t l = 0; l < geometry_.num_moe_layers(); ++l) {
      std::vector<uint16_t> ids;
      for (int64_t row = block.rows.begin + 1; row < block.rows.end; ++row) {
        for (int32_t k = 0; k < layer().top_k; ++k) ids.push_back(IdAt(row, l, k));
      }
      cuts.emplace_back(geometry_.cut_bytes(l, 1, block.rows.size() - 1, Codec::kPacked));
      PackSlowly(ids, geometry_.id_bits(l, Codec::kPacked), geometry_.cut_bit_offset(l, 1, Codec::kPacked),
                 absl::MakeSpan(cuts.back()));
      bytes += cuts.back().size();
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  cuts_.bytes = Buffer(bytes);
  uint8_t* to = cuts_.bytes.data();
  for (const std::vector<uint8_t>& cut : cuts) to = std::copy(cut.begin(), cut.end(), to);
  cuts_.ids = Buffer(all.size() * layer().id_bytes());
  StoreSlowly(all, layer().id_bytes(), cuts_.ids.data());
}

}  // namespace routing_replay::bench
