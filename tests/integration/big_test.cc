// Large data: one sample of 256K tokens x 94 layers x 8, and one read of 100,000 samples.
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

constexpr int32_t kLayers = 94;

uint8_t Expert(int64_t row, int64_t layer, int64_t slot) {
  const uint64_t hash = static_cast<uint64_t>(row * kLayers + layer) * 0x9E3779B97F4A7C15u;
  return static_cast<uint8_t>(((hash >> 40) + slot * (2 * ((hash >> 50) & 63) + 1)) & 127);
}

class BigSampleSink final : public ReadSink {
 public:
  absl::Status OnRecord(const SampleRecord& record) override {
    return record.status == SampleStatus::kOk ? absl::OkStatus() : absl::DataLossError(record.message);
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    const uint8_t* id = piece.bytes.data();
    for (int32_t layer = piece.layer_begin; layer < piece.layer_begin + piece.layer_count; ++layer) {
      for (int64_t row = piece.rows.begin; row < piece.rows.end; ++row) {
        for (int64_t slot = 0; slot < 8; ++slot) {
          if (*id++ != Expert(row, layer, slot))
            return absl::DataLossError(absl::StrCat("row ", row, ", layer ", layer));
        }
      }
    }
    ids += static_cast<int64_t>(piece.bytes.size());
    return absl::OkStatus();
  }
  int64_t ids = 0;
};

class BigTest : public ServerTest {};

TEST_F(BigTest, OneSampleOf256KTokens) {
  StartServer();
  constexpr int64_t kTokens = 256 << 10;
  constexpr int64_t kRows = kTokens - 1;
  constexpr int64_t kStep = 16 << 10;
  const auto run = OpenRun("big", Geometry::Uniform(kLayers, 128, 8));
  const std::vector<uint32_t> tokens = MakeTokens(kTokens, 1);
  const auto appender = run->NewAppender();
  for (int64_t begin = 0; begin < kRows; begin += kStep) {
    const int64_t end = std::min(begin + kStep, kRows);
    std::vector<uint8_t> tensor;
    tensor.reserve((end - begin) * kLayers * 8);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        for (int64_t slot = 0; slot < 8; ++slot) tensor.push_back(Expert(row, layer, slot));
      }
    }
    AppendOptions options{.sample = "a", .row_start = begin};
    options.token_ids = absl::MakeConstSpan(tokens).subspan(begin, end - begin);
    if (end == kRows) options.seal_num_tokens = kTokens;
    ASSERT_OK(appender->Append(options, {.dtype = DType::kU8, .shape = {end - begin, kLayers, 8}}, tensor));
  }
  ASSERT_OK(appender->Flush(std::chrono::seconds(120)));
  BigSampleSink sink;
  ASSERT_OK(run->Read({.samples = {{.sample = "a", .num_tokens = kTokens}}}, sink, std::chrono::seconds(120)));
  EXPECT_EQ(sink.ids, kRows * kLayers * 8);
}

TEST_F(BigTest, OneReadOf100000Samples) {
  StartServer();
  constexpr int64_t kSamples = 100000;
  const Geometry geometry = Geometry::Uniform(2, 16, 2);
  const auto run = OpenRun("many", geometry);
  const auto appender = run->NewAppender();
  ReadRequest request;
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto id = static_cast<uint8_t>(i % 15);
    const std::vector<uint8_t> tensor = {id, 15, 15, id, id, 15, 15, id};
    const std::string sample = absl::StrCat("sample/", i);
    ASSERT_OK(
        appender->Append({.sample = sample, .seal_num_tokens = 3}, {.dtype = DType::kU8, .shape = {2, 2, 2}}, tensor));
    request.samples.push_back({.sample = sample});
  }
  ASSERT_OK(appender->Flush(std::chrono::seconds(120)));
  ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows(request, std::chrono::seconds(120)));
  ASSERT_EQ(read.size(), static_cast<size_t>(kSamples));
  for (int64_t i = 0; i < kSamples; ++i) {
    ASSERT_EQ(read[i].record.status, SampleStatus::kOk) << i;
    ASSERT_EQ(read[i].record.index, i);
    const auto id = static_cast<uint16_t>(i % 15);
    ASSERT_EQ(read[i].layers[0], (std::vector<uint16_t>{id, 15, id, 15})) << i;
    ASSERT_EQ(read[i].layers[1], (std::vector<uint16_t>{15, id, 15, id})) << i;
  }
}

}  // namespace
}  // namespace routing_replay::testing
