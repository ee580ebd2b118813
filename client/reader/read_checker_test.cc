#include "client/reader/read_checker.h"

#include <random>

#include "client/reader/decoded_rows.h"
#include "client/testing/served_read.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;
using testing::Messages;
using testing::RandomRanges;

class ReadCheckerTest : public testing::ServedReadTest {
 protected:
  absl::Status Check(const ReadRequest& request, const std::vector<ReadResponse>& messages, ReadSink& sink) {
    auto checker = ReadChecker::Create(geometry_, request, sink);
    if (!checker.ok()) return checker.status();
    for (const ReadResponse& message : messages) {
      if (absl::Status status = (*checker)->OnMessage(message); !status.ok()) return status;
    }
    return (*checker)->OnEnd();
  }

  absl::Status Check(const ReadRequest& request, const std::vector<ReadResponse>& messages) {
    PlaneCollector rows(geometry_, request, *LayerOrdinals(geometry_, request.layers));
    return Check(request, messages, rows);
  }
};

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
    PlaneCollector rows(geometry_, request, ordinals);
    ASSERT_OK(Check(request, messages.messages, rows));
    const std::vector<SampleRows> read = rows.ToRows();
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

TEST_F(ReadCheckerTest, WrongGeometryOfAPieceIsRejected) {
  const ReadRequest request{.samples = {{.sample = "s"}}};
  const Messages messages = Serve(request, Codec::kPacked, 1);
  const auto reject = [&](auto change) {
    std::vector<ReadResponse> changed = messages.messages;
    change(changed[1].pieces[0]);
    EXPECT_FALSE(Check(request, changed).ok());
  };
  reject([](Piece& p) { p.sample_index = 1; });
  reject([](Piece& p) { p.layer_begin = 3; });
  reject([](Piece& p) { p.layer_begin = 511; });
  reject([](Piece& p) { p.layer_count = 5, p.cut_crc32c.resize(5); });
  reject([](Piece& p) { p.rows.end += 1; });
  reject([](Piece& p) { p.rows.begin += 1; });
  reject([](Piece& p) { p.codec = Codec::kRaw; });
  reject([](Piece& p) { p.rows = {0, 4096}; });
}

TEST_F(ReadCheckerTest, ALateRecordTakesTheSampleBack) {
  const ReadRequest request{.samples = {{.sample = "a"}, {.sample = "b"}}};
  const Messages messages = Serve(request, Codec::kRaw, 1);
  const auto second = std::find_if(messages.messages.begin() + 1, messages.messages.end(),
                                   [](const ReadResponse& m) { return !m.records.empty(); });
  std::vector<ReadResponse> lost(messages.messages.begin(), messages.messages.begin() + 3);
  // The third message has pieces of the sample, and a second record that says that the sample is lost. The pieces must
  // be ignored.
  lost.back().records.push_back({.index = 0, .status = SampleStatus::kLost, .message = "damaged"});
  lost.insert(lost.end(), second, messages.messages.end());
  PlaneCollector rows(geometry_, request, *LayerOrdinals(geometry_, {}));
  ASSERT_OK(Check(request, lost, rows));
  const std::vector<SampleRows> read = rows.ToRows();
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

// PlaneCollector lays ids out as numpy arrays need them: the rows of a layer one after the other, and rows of layers
// with a smaller K filled up with zeros.
TEST_F(ReadCheckerTest, PlanesHoldIdsSideBySide) {
  record_.unrecorded = {{70, 90}};
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    for (const std::vector<int32_t>& layers : {std::vector<int32_t>{}, {1, 4}, {2}, {1, 5}}) {
      const ReadRequest request{.layers = layers,
                                .samples = {{.sample = "a"}, {.sample = "b", .rows = {{3, 75}, {100, 101}}}}};
      const Messages served = Serve(request, codec, 3);
      const std::vector<int32_t> ordinals = *LayerOrdinals(geometry_, layers);
      PlaneCollector planes(geometry_, request, ordinals);
      ASSERT_OK(Check(request, served.messages, planes));
      ASSERT_EQ(planes.samples().size(), request.samples.size());
      for (const SamplePlanes& sample : planes.samples()) {
        const uint8_t* at = sample.ids.data();
        for (size_t layer = 0; layer < ordinals.size(); ++layer) {
          const int32_t top_k = geometry_.layer(ordinals[layer]).top_k;
          const std::vector<uint16_t> expected = routes_.Slice(ordinals[layer], sample.rows);
          for (int64_t row = 0; row < TotalRows(sample.rows); ++row) {
            for (int32_t slot = 0; slot < planes.top_k(); ++slot, at += planes.id_bytes()) {
              const int id = planes.id_bytes() == 1 ? at[0] : at[0] | at[1] << 8;
              ASSERT_EQ(id, slot < top_k ? expected[row * top_k + slot] : 0);
            }
          }
        }
        EXPECT_EQ(at, sample.ids.data() + sample.ids.size());
      }
    }
  }
}

}  // namespace
}  // namespace routing_replay::client
