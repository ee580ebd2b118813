#include "client/reader/read_checker.h"

#include <random>

#include "client/reader/read_rows.h"
#include "client/reader/row_planes.h"
#include "proto/wire/block/block.h"
#include "proto/wire/block/cut.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using testing::MakeRandomRoutes;
using testing::RandomRoutes;

// A read as a server sends it: messages of a few pieces each, with the bytes that they point into.
struct Messages {
  std::vector<ReadResponse> messages;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> bytes;

  std::vector<uint8_t>& AddBytes() { return *bytes.emplace_back(std::make_unique<std::vector<uint8_t>>()); }
};

// The block of rows `rows` of `routes`.
Block MakeBlock(const Geometry& geometry, const RandomRoutes& routes, RowRange rows, Codec codec) {
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
  return codec == Codec::kRaw ? std::move(raw) : Transcode(geometry, raw.view(), codec);
}

// One piece of `block`, its bytes at the end of `out`.
Piece CutPiece(const Geometry& geometry, const Block& block, RowRange rows, int32_t sample,
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

class ReadCheckerTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 300;
  static constexpr int64_t kBlockRows = 64;

  // Answers `request` for samples that all hold `routes_`, unrecorded rows left out.
  Messages Serve(const ReadRequest& request, Codec codec, size_t pieces_per_message) {
    Messages out;
    const auto ordinals = *LayerOrdinals(geometry_, request.layers);
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

  absl::Status Check(const ReadRequest& request, const std::vector<ReadResponse>& messages, ReadSink& sink) {
    auto checker = ReadChecker::Create(geometry_, request, sink);
    if (!checker.ok()) return checker.status();
    for (const ReadResponse& message : messages) {
      if (absl::Status status = (*checker)->OnMessage(message); !status.ok()) return status;
    }
    return (*checker)->OnEnd();
  }

  absl::Status Check(const ReadRequest& request, const std::vector<ReadResponse>& messages) {
    RowCollector rows(geometry_, *LayerOrdinals(geometry_, request.layers));
    return Check(request, messages, rows);
  }

  const Geometry geometry_ = *Geometry::Create(
      {.num_layers = 6, .moe_layer_ids = {1, 2, 4, 5}, .num_experts = {64, 300, 7, 256}, .top_k = {2, 3, 1, 5}});
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, kRows, 1);
  SampleRecord record_{.status = SampleStatus::kOk,
                       .committed_rows = kRows,
                       .num_tokens = kRows + 1,
                       .unrecorded = {{10, 20}, {63, 65}, {200, 280}}};
};

std::vector<RowRange> RandomRanges(std::mt19937_64& random, int64_t rows) {
  std::vector<RowRange> ranges;
  for (auto at = static_cast<int64_t>(random() % 50); at < rows; at += 1 + static_cast<int64_t>(random() % 90)) {
    const auto end = std::min<int64_t>(rows, at + 1 + static_cast<int64_t>(random() % 100));
    ranges.push_back({at, end});
    at = end;
  }
  return ranges;
}

TEST_F(ReadCheckerTest, AnySliceIsTheSliceOfTheOriginal) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    ReadRequest request;
    for (const LayerRouting& layer : geometry_.layers()) {
      if (random() % 2) request.layers.push_back(layer.layer_id);
    }
    const std::vector<int32_t> ordinals = *LayerOrdinals(geometry_, request.layers);
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      request.samples.push_back({.sample = "s", .rows = RandomRanges(random, kRows)});
    }
    const Codec codec = random() % 2 ? Codec::kRaw : Codec::kPacked;
    const Messages messages = Serve(request, codec, 1 + random() % 9);
    RowCollector rows(geometry_, ordinals);
    ASSERT_OK(Check(request, messages.messages, rows));
    const std::vector<SampleRows> read = rows.Take();
    ASSERT_EQ(read.size(), request.samples.size());
    for (size_t i = 0; i < read.size(); ++i) {
      std::vector<RowRange> expected;
      for (const RowRange range :
           request.samples[i].rows.empty() ? std::vector<RowRange>{{0, kRows}} : request.samples[i].rows) {
        for (const RowRange part : Subtract(range, record_.unrecorded)) AppendMerged(expected, part);
      }
      EXPECT_EQ(read[i].rows, expected);
      for (size_t l = 0; l < ordinals.size(); ++l) EXPECT_EQ(read[i].layers[l], routes_.Slice(ordinals[l], expected));
    }
  }
}

TEST_F(ReadCheckerTest, EveryFlippedBitIsFoundAndNamed) {
  const ReadRequest request{.samples = {{.sample = "s"}}};
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    const Messages messages = Serve(request, codec, 1);
    std::mt19937_64 random(3);
    for (size_t m = 0; m < messages.messages.size(); ++m) {
      std::vector<uint8_t>& bytes = *messages.bytes[m];
      const size_t at = random() % bytes.size();
      const uint8_t good = std::exchange(bytes[at], static_cast<uint8_t>(bytes[at] ^ 1 << random() % 8));
      const absl::Status status = Check(request, messages.messages);
      bytes[at] = good;
      EXPECT_THAT(status, Fails(absl::StatusCode::kDataLoss, Reason::kChecksum));
      const auto detail = GetErrorDetail(status);
      EXPECT_EQ(detail->sample, "s");
      const Piece& piece = messages.messages[m].pieces[0];
      EXPECT_EQ(detail->layer, geometry_.layer(piece.layer_begin).layer_id);
      EXPECT_EQ(detail->row, piece.rows.begin);
    }
  }
}

TEST_F(ReadCheckerTest, LeavingOutOrSwappingAnyPieceIsNoticed) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b", .rows = {{5, 100}}}}};
  const Messages all = Serve(request, Codec::kRaw, 1);
  ASSERT_OK(Check(request, all.messages));
  for (size_t m = 0; m < all.messages.size(); ++m) {
    std::vector<ReadResponse> without = all.messages;
    without.erase(without.begin() + static_cast<int64_t>(m));
    EXPECT_FALSE(Check(request, without).ok()) << "without message " << m;
    std::vector<ReadResponse> twice = all.messages;
    twice.insert(twice.begin() + static_cast<int64_t>(m), all.messages[m]);
    EXPECT_FALSE(Check(request, twice).ok()) << "twice message " << m;
    if (m == 0) continue;
    std::vector<ReadResponse> swapped = all.messages;
    std::swap(swapped[m - 1], swapped[m]);
    EXPECT_FALSE(Check(request, swapped).ok()) << "swapped messages " << m - 1 << " and " << m;
  }
}

TEST_F(ReadCheckerTest, WrongGeometryOfAPieceIsRefused) {
  const ReadRequest request{.samples = {{.sample = "s"}}};
  const Messages messages = Serve(request, Codec::kPacked, 1);
  const auto refuse = [&](auto change) {
    std::vector<ReadResponse> changed = messages.messages;
    change(changed[1].pieces[0]);
    EXPECT_FALSE(Check(request, changed).ok());
  };
  refuse([](Piece& p) { p.sample_index = 1; });
  refuse([](Piece& p) { p.layer_begin = 3; });
  refuse([](Piece& p) { p.layer_begin = 511; });
  refuse([](Piece& p) { p.layer_count = 5, p.cut_crc32c.resize(5); });
  refuse([](Piece& p) { p.rows.end += 1; });
  refuse([](Piece& p) { p.rows.begin += 1; });
  refuse([](Piece& p) { p.codec = Codec::kRaw; });
  refuse([](Piece& p) { p.rows = {0, 4096}; });
}

TEST_F(ReadCheckerTest, ALateRecordTakesTheSampleBack) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  const Messages messages = Serve(request, Codec::kRaw, 1);
  const auto second = std::find_if(messages.messages.begin() + 1, messages.messages.end(),
                                   [](const ReadResponse& m) { return !m.records.empty(); });
  std::vector<ReadResponse> lost(messages.messages.begin(), messages.messages.begin() + 3);
  // With its own bytes still in the message: they no longer count.
  lost.back().records.push_back({.index = 0, .status = SampleStatus::kLost, .message = "damaged"});
  lost.insert(lost.end(), second, messages.messages.end());
  RowCollector rows(geometry_, *LayerOrdinals(geometry_, {}));
  ASSERT_OK(Check(request, lost, rows));
  const std::vector<SampleRows> read = rows.Take();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].record.status, SampleStatus::kLost);
  EXPECT_TRUE(read[0].rows.empty());
  EXPECT_TRUE(read[0].layers[0].empty());
  EXPECT_EQ(read[1].record.status, SampleStatus::kOk);
}

TEST_F(ReadCheckerTest, RecordsComeOnceEachInOrder) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  const auto records = [&](std::vector<int32_t> indexes) {
    ReadResponse message;
    for (const int32_t index : indexes) {
      message.records.push_back({.index = index, .status = SampleStatus::kNotFound});
    }
    return Check(request, {message});
  };
  EXPECT_OK(records({0, 1}));
  EXPECT_EQ(records({0}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(records({}).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(records({1, 0}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(records({0, 0, 1}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(records({0, 1, 2}).code(), absl::StatusCode::kInternal);
}

TEST_F(ReadCheckerTest, ADenseLayerCannotBeAsked) {
  EXPECT_THAT(LayerOrdinals(geometry_, {1, 3}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(LayerOrdinals(geometry_, {77}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

// What numpy sees is what the slow collector sees: ids side by side, short rows filled up with zeros.
TEST_F(ReadCheckerTest, PlanesHoldTheSameIds) {
  record_.unrecorded = {{70, 90}};
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    for (const std::vector<int32_t>& layers : {std::vector<int32_t>{}, {1, 4}, {2}, {1, 5}}) {
      const ReadRequest request{.layers = layers,
                                .samples = {{.sample = "a"}, {.sample = "b", .rows = {{3, 75}, {100, 101}}}}};
      const Messages served = Serve(request, codec, 3);
      const std::vector<int32_t> ordinals = *LayerOrdinals(geometry_, layers);
      RowCollector rows(geometry_, ordinals);
      PlaneCollector planes(geometry_, request, ordinals);
      ASSERT_OK(Check(request, served.messages, rows));
      ASSERT_OK(Check(request, served.messages, planes));
      const std::vector<SampleRows> expected = rows.Take();
      ASSERT_EQ(planes.samples().size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        const SamplePlanes& sample = planes.samples()[i];
        EXPECT_EQ(sample.rows, expected[i].rows);
        const uint8_t* at = sample.ids.data();
        for (size_t layer = 0; layer < ordinals.size(); ++layer) {
          const int32_t top_k = geometry_.layer(ordinals[layer]).top_k;
          for (int64_t row = 0; row < TotalRows(sample.rows); ++row) {
            for (int32_t slot = 0; slot < planes.top_k(); ++slot, at += planes.id_bytes()) {
              const int id = planes.id_bytes() == 1 ? at[0] : at[0] | at[1] << 8;
              ASSERT_EQ(id, slot < top_k ? expected[i].layers[layer][row * top_k + slot] : 0);
            }
          }
        }
        EXPECT_EQ(at, sample.ids.data() + sample.ids.size());
      }
    }
  }
}

}  // namespace
}  // namespace routing_replay
