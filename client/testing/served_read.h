// Makes reads as a server sends them, without a server.
#ifndef CLIENT_TESTING_SERVED_READ_H_
#define CLIENT_TESTING_SERVED_READ_H_

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "client/reader/read_checker.h"
#include "proto/wire/block/block.h"
#include "proto/wire/message/read_message.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

// A read as a server sends it: messages of a few pieces each, with the bytes that they point into.
struct Messages {
  std::vector<ReadResponse> messages;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> bytes;

  std::vector<uint8_t>& AddBytes() { return *bytes.emplace_back(std::make_unique<std::vector<uint8_t>>()); }
};

// The block of rows `rows` of `routes`.
inline Block MakeBlock(const Geometry& geometry, const RandomRoutes& routes, RowRange rows, Codec codec) {
  Block raw;
  raw.rows = rows;
  raw.bytes = Buffer(geometry.block_bytes(rows.size(), Codec::kRaw));
  uint8_t* out = raw.bytes.data();
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    for (const uint16_t id : routes.Slice(i, {rows})) {
      *out++ = static_cast<uint8_t>(id);
      if (geometry.layer(i).id_bytes() == 2) *out++ = static_cast<uint8_t>(id >> 8);
    }
  }
  ComputeCrc(geometry, raw);
  return codec == Codec::kRaw ? std::move(raw) : *Merge(geometry, {{raw.view(), rows}}, codec);
}

// One piece of `block`, its bytes at the end of `out`.
inline Piece CutPiece(const Geometry& geometry, const Block& block, RowRange rows, int32_t sample,
                      absl::Span<const int32_t> ordinals, int32_t layer, std::vector<uint8_t>& out) {
  const int64_t row = rows.begin - block.rows.begin;
  Piece piece{.sample_index = sample,
              .layer_begin = layer,
              .layer_count = 1,
              .rows = rows,
              .codec = block.codec,
              .bit_offset = geometry.cut_bit_offset(ordinals[layer], row, block.codec),
              .bytes = geometry.cut_bytes(ordinals[layer], row, rows.size(), block.codec)};
  out.resize(out.size() + piece.bytes);
  const auto crc = CutPlane(geometry, block.view(), ordinals[layer], rows,
                            absl::MakeSpan(out).last(static_cast<size_t>(piece.bytes)));
  EXPECT_OK(crc);
  piece.cut_crc32c.push_back(*crc);
  return piece;
}

class ServedReadTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 300;
  static constexpr int64_t kBlockRows = 64;

  // Answers `request` for samples that all have the rows of `routes_`, without unrecorded rows.
  Messages Serve(const ReadRequest& request, Codec codec, size_t pieces_per_message) {
    Messages out;
    const auto ordinals = *client::LayerOrdinals(geometry_, request.layers);
    ReadResponse message;
    std::vector<uint8_t>* bytes = &out.AddBytes();
    const auto flush = [&] {
      message.payload = ByteChain(*bytes);
      out.messages.push_back(std::move(message));
      message = {};
      bytes = &out.AddBytes();
    };
    for (size_t i = 0; i < request.samples.size(); ++i) {
      SampleRecord record = record_;
      record.index = static_cast<int32_t>(i);
      message.records.push_back(record);
      std::vector<RowRange> rows = request.samples[i].rows;
      if (rows.empty()) rows = {{0, kRows}};
      for (const RowRange recorded : Subtract({0, kRows}, record_.unrecorded)) {
        for (const RowRange window : SplitAtWindows(recorded, kBlockRows)) {
          const Block block = MakeBlock(geometry_, routes_, window, codec);
          for (const RowRange part : Clip(rows, window)) {
            for (int32_t layer = 0; layer < static_cast<int32_t>(ordinals.size()); ++layer) {
              if (message.pieces.size() >= pieces_per_message) flush();
              message.pieces.push_back(
                  CutPiece(geometry_, block, part, static_cast<int32_t>(i), ordinals, layer, *bytes));
            }
          }
        }
      }
    }
    flush();
    return out;
  }

  const Geometry geometry_ = *Geometry::Create(
      {.num_layers = 6, .moe_layer_ids = {1, 2, 4, 5}, .num_experts = {64, 300, 7, 256}, .top_k = {2, 3, 1, 5}});
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, kRows, 1);
  SampleRecord record_{.status = SampleStatus::kOk,
                       .committed_rows = kRows,
                       .num_tokens = kRows + 1,
                       .unrecorded = {{10, 20}, {63, 65}, {200, 280}}};
};

inline std::vector<RowRange> RandomRanges(std::mt19937_64& random, int64_t rows) {
  std::vector<RowRange> ranges;
  for (auto at = static_cast<int64_t>(random() % 50); at < rows; at += 1 + static_cast<int64_t>(random() % 90)) {
    const auto end = std::min<int64_t>(rows, at + 1 + static_cast<int64_t>(random() % 100));
    ranges.push_back({at, end});
    at = end;
  }
  return ranges;
}

}  // namespace routing_replay::testing

#endif  // CLIENT_TESTING_SERVED_READ_H_
