// Reads return what was appended, for any split, encoding and slice.
#include <zstd.h>

#include <random>
#include <thread>

#include "tests/integration/fixture.h"
#include "tests/quickstart/engine_payload.h"

namespace routing_replay::testing {
namespace {

class AppendReadTest : public ServerTest {
 protected:
  void SetUp() override { StartServer(); }
};

std::vector<RowRange> RandomRanges(std::mt19937_64& random, int64_t rows) {
  std::vector<RowRange> ranges;
  for (int64_t begin = static_cast<int64_t>(random() % 40); begin < rows;) {
    const int64_t end = std::min<int64_t>(rows, begin + 1 + static_cast<int64_t>(random() % 300));
    ranges.push_back({begin, end});
    begin = end + 1 + static_cast<int64_t>(random() % 200);
  }
  if (ranges.empty()) ranges.push_back({0, 1});
  return ranges;
}

std::vector<int32_t> RandomLayers(std::mt19937_64& random, const Geometry& geometry) {
  std::vector<int32_t> layers;
  for (const LayerRouting& layer : geometry.layers()) {
    if (random() % 2 == 0) layers.push_back(layer.layer_id);
  }
  if (layers.empty()) layers.push_back(geometry.layer(0).layer_id);
  return layers;
}

// A read of any layers and row ranges is a slice of the original.
TEST_F(AppendReadTest, AnySliceIsTheSliceOfTheOriginal) {
  const auto mixed = Geometry::Create(
      {.num_layers = 6, .moe_layer_ids = {1, 2, 4, 5}, .num_experts = {64, 300, 7, 256}, .top_k = {2, 2, 2, 2}});
  ASSERT_OK(mixed);
  const std::vector<Geometry> geometries = {Geometry::Uniform(5, 128, 8), Geometry::Uniform(3, 384, 6),
                                            Geometry::Uniform(4, 60, 3), *mixed};
  std::mt19937_64 random(7);
  for (size_t g = 0; g < geometries.size(); ++g) {
    for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
      const Geometry& geometry = geometries[g];
      const auto run = OpenRun(absl::StrCat("slice/", g, CodecName(codec)), geometry, {.codec = codec});
      const RandomRoutes routes = MakeRandomRoutes(geometry, 700, g);
      ASSERT_OK(PutRows(*run, routes, {0, 700}, {.sample = "a", .seal_num_tokens = 701}));
      for (int round = 0; round < 25; ++round) {
        const std::vector<RowRange> ranges = RandomRanges(random, 700);
        const std::vector<int32_t> layers = RandomLayers(random, geometry);
        ASSERT_OK_AND_ASSIGN(
            const auto read,
            run->ReadRows({.layers = layers, .samples = {{.sample = "a", .rows = ranges}}}, kCallTimeout));
        ASSERT_EQ(read[0].record.status, SampleStatus::kOk);
        ASSERT_EQ(read[0].rows, ranges);
        for (size_t i = 0; i < layers.size(); ++i) {
          ASSERT_EQ(read[0].layers[i], routes.Slice(*geometry.FindOrdinal(layers[i]), ranges));
        }
      }
    }
  }
}

// Returns the rows of `range` as a payload of a randomly chosen engine, possibly compressed.
quickstart::EnginePayload RandomPayload(std::mt19937_64& random, const Geometry& geometry, const RandomRoutes& routes,
                                        RowRange range) {
  const std::vector<int32_t> ids = routes.Tensor(range);
  const Routes rows{.rows = range.size(),
                    .layers = geometry.num_moe_layers(),
                    .top_k = geometry.layer(0).top_k,
                    .num_experts = geometry.layer(0).num_experts,
                    .ids = {ids.begin(), ids.end()}};
  const auto form = static_cast<quickstart::PayloadForm>(random() % quickstart::kPayloadForms);
  quickstart::EnginePayload payload = MakeEnginePayload(form, rows, {{0, range.size()}});
  if (random() % 2 == 0) return payload;
  std::string frame(ZSTD_compressBound(payload.bytes.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), payload.bytes.data(), payload.bytes.size(), 1));
  payload.tensor.compression = Compression::kZstd;
  payload.tensor.raw_size = static_cast<int64_t>(payload.bytes.size());
  payload.bytes = std::move(frame);
  return payload;
}

// Every split into appends, every encoding and any repeated appends, through both forms of the appender, must give the
// same sample. The weights change every 300 rows.
TEST_F(AppendReadTest, AnySplitEncodingAndRetryGivesTheSameSample) {
  const Geometry geometry = Geometry::Uniform(4, 128, 8);
  const auto run = OpenRun("split", geometry);
  constexpr int64_t kRows = 900, kRowsPerVersion = 300;
  const RandomRoutes routes = MakeRandomRoutes(geometry, kRows, 3);
  const std::vector<uint32_t> tokens = MakeTokens(kRows + 1, 4);
  std::mt19937_64 random(11);
  SampleState first;
  for (int round = 0; round < 24; ++round) {
    const std::string sample = absl::StrCat("s", round);
    const auto appender = run->NewAppender();
    const auto send = [&](RowRange range) {
      AppendOptions options{.sample = sample,
                            .row_start = range.begin,
                            .weight_version = range.begin / kRowsPerVersion,
                            .token_ids = tokens};
      if (range.end == kRows) options.seal_num_tokens = kRows + 1;
      const quickstart::EnginePayload payload = RandomPayload(random, geometry, routes, range);
      return appender->Append(options, payload.tensor, payload.span());
    };
    std::vector<RowRange> sent;
    int64_t sent_again = 0;
    for (int64_t begin = 0; begin < kRows; begin = sent.back().end) {
      const int64_t limit = (begin / kRowsPerVersion + 1) * kRowsPerVersion;
      sent.push_back({begin, std::min<int64_t>(limit, begin + 1 + static_cast<int64_t>(random() % 400))});
      ASSERT_OK(send(sent.back()));
      for (; random() % 2 == 0; ++sent_again) ASSERT_OK(send(sent[random() % sent.size()]));
    }
    ASSERT_OK(appender->Flush(kCallTimeout));
    const AppenderMetrics metrics = appender->metrics();
    EXPECT_EQ(metrics.acknowledged, static_cast<int64_t>(sent.size()) + sent_again);
    EXPECT_EQ(metrics.conflicting_rows, 0);
    EXPECT_EQ(metrics.failed, 0);
    ExpectRows(*run, sample, routes, {{0, kRows}});
    ASSERT_OK_AND_ASSIGN(const SampleState state, run->Stat(sample));
    EXPECT_EQ(state.num_tokens, kRows + 1);
    EXPECT_EQ(state.weights, (std::vector<WeightSpan>{{{0, 300}, 0, ""}, {{300, 600}, 1, ""}, {{600, 900}, 2, ""}}));
    if (round == 0) first = state;
    ASSERT_TRUE(state.token_check.has_value());
    EXPECT_EQ(state.token_check, first.token_check);
    EXPECT_EQ(state.stored_bytes, first.stored_bytes);
  }
}

// A short append is sent by the thread that calls Append, a long one by the appender's own thread. The rows of a sample
// must keep their order nevertheless.
TEST_F(AppendReadTest, ManyThreadsShareAnAppender) {
  const Geometry geometry = Geometry::Uniform(40, 128, 8);
  constexpr int64_t kRows = 3000, kThreads = 4;
  const auto run = OpenRun("threads", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, kRows, 12);
  const auto appender = run->NewAppender();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(thread);
      AppendOptions options{.sample = absl::StrCat("s", thread)};
      for (int64_t begin = 0, end; begin < kRows; begin = end) {
        end = std::min(kRows, begin + (random() % 8 == 0 ? 400 : 1 + static_cast<int64_t>(random() % 4)));
        options.row_start = begin;
        if (end == kRows) options.seal_num_tokens = kRows + 1;
        const std::vector<int32_t> tensor = routes.Tensor({begin, end});
        EXPECT_OK(appender->Append(options, Int32Tensor(geometry, end - begin), AsBytes(tensor)));
        const bool wait = random() % 4 == 0;
        EXPECT_OK(wait ? appender->Settle(options.sample, std::nullopt, kCallTimeout).status() : absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(appender->Flush(kCallTimeout));
  for (int thread = 0; thread < kThreads; ++thread) ExpectRows(*run, absl::StrCat("s", thread), routes, {{0, kRows}});
}

TEST_F(AppendReadTest, AnAppenderIsClosedWhileAppendsWaitForRoom) {
  const Geometry geometry = Geometry::Uniform(4, 128, 8);
  const auto run = OpenRun("closed", geometry);
  const std::vector<int32_t> tensor = MakeRandomRoutes(geometry, 20, 5).Tensor({0, 20});
  for (int round = 0; round < 30; ++round) {
    const auto appender = run->NewAppender({.max_queued_bytes = 3000});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 6; ++thread) {
      threads.emplace_back([&, thread] {
        absl::Status status;
        for (int i = 0; status.ok(); ++i) {
          const AppendOptions options{.sample = absl::StrCat(round, "/", thread, "/", i)};
          status = appender->Append(options, Int32Tensor(geometry, 20), AsBytes(tensor));
        }
        EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_OK(appender->Close(kCallTimeout));
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(AppendReadTest, UnrecordedRowsAreListedAndHoldNothing) {
  const Geometry geometry = Geometry::Uniform(2, 256, 4);
  const auto run = OpenRun("holes", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 300, 1);
  std::vector<int32_t> tensor = routes.Tensor({0, 300});
  std::fill(tensor.begin() + 10 * 8, tensor.begin() + 20 * 8, -1);
  ASSERT_OK(run->Put({.sample = "a", .seal_num_tokens = 301}, Int32Tensor(geometry, 300), AsBytes(tensor)));
  ExpectRows(*run, "a", routes, {{0, 10}, {20, 300}});
  ASSERT_OK_AND_ASSIGN(const SampleState state, run->Stat("a"));
  EXPECT_EQ(state.unrecorded, (std::vector<RowRange>{{10, 20}}));
}

TEST_F(AppendReadTest, RecordsSayWhyASampleCannotAnswer) {
  const Geometry geometry = Geometry::Uniform(2, 16, 2);
  const auto run = OpenRun("why", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 50, 1);
  const std::vector<uint32_t> tokens = MakeTokens(51, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 50},
                    {.sample = "sealed", .weight_version = 3, .token_ids = tokens, .seal_num_tokens = 51}));
  ASSERT_OK(PutRows(*run, routes, {0, 20}, {.sample = "open"}));
  ASSERT_OK(run->PutUnrecorded({.sample = "dropped", .seal_num_tokens = 51}, 50));
  ReadRequest request{.samples = {{.sample = "nobody"},
                                  {.sample = "sealed"},
                                  {.sample = "open", .rows = {{10, 30}}},
                                  {.sample = "dropped"},
                                  {.sample = "sealed", .rows = {{40, 60}}},
                                  {.sample = "sealed", .num_tokens = 50},
                                  {.sample = "sealed", .token_checks = {{50, 12345}}},
                                  {.sample = "sealed", .min_weight_version = 4},
                                  {.sample = "open"},
                                  {.sample = "open", .token_checks = {{20, 12345}}}}};
  ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows(request, kCallTimeout));
  std::vector<SampleStatus> statuses;
  for (const SampleRows& sample : read) statuses.push_back(sample.record.status);
  EXPECT_THAT(statuses,
              ::testing::ElementsAre(SampleStatus::kNotFound, SampleStatus::kOk, SampleStatus::kNotReady,
                                     SampleStatus::kNotRecorded, SampleStatus::kOutOfRange,
                                     SampleStatus::kLengthMismatch, SampleStatus::kTokensMismatch,
                                     SampleStatus::kVersionRejected, SampleStatus::kOk, SampleStatus::kTokensNotKnown));
  EXPECT_EQ(read[8].rows, (std::vector<RowRange>{{0, 20}}));
}

TEST_F(AppendReadTest, WaitingReadGetsRowsThatComeLater) {
  const Geometry geometry = Geometry::Uniform(2, 16, 2);
  const auto run = OpenRun("wait", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 50, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 20}, {.sample = "a"}));
  ASSERT_OK(PutRows(*run, routes, {0, 50}, {.sample = "ready", .seal_num_tokens = 51}));
  // Puts the rest of "a" when the read has delivered "ready". At that time the read is waiting for "a".
  class PutWhenReady final : public ReadSink {
   public:
    explicit PutWhenReady(std::function<void()> put) : put_(std::move(put)) {}
    absl::Status OnRecord(const SampleRecord& record) override {
      EXPECT_EQ(record.status, SampleStatus::kOk) << record.message;
      if (record.index == 0) put_();
      return absl::OkStatus();
    }
    absl::Status OnPiece(const ReadPiece& piece) override {
      rows_ += piece.rows.size() * piece.layer_count;
      return absl::OkStatus();
    }
    int64_t rows() const { return rows_; }

   private:
    const std::function<void()> put_;
    int64_t rows_ = 0;
  };
  PutWhenReady sink([&] {
    EXPECT_OK(PutRows(*run, routes, {20, 40}, {.sample = "a"}));
    EXPECT_OK(PutRows(*run, routes, {40, 50}, {.sample = "a", .seal_num_tokens = 51}));
  });
  ASSERT_OK(run->Read({.samples = {{.sample = "ready"}, {.sample = "a"}}, .wait = true}, sink, kCallTimeout));
  EXPECT_EQ(sink.rows(), 2 * 2 * 50);
  ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows({.samples = {{.sample = "a"}}}, kCallTimeout));
  EXPECT_EQ(read[0].layers[1], routes.layers[1]);
}

// The first rows of "late" are put only when the read has delivered "ready". By then the read has already looked for
// "late" and not found it.
TEST_F(AppendReadTest, AWaitingReadWaitsForASampleThatNobodyHasBegun) {
  const Geometry geometry = Geometry::Uniform(2, 16, 2);
  const auto run = OpenRun("begin", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 20, 1);
  ASSERT_OK(PutRows(*run, routes, {0, 20}, {.sample = "ready", .seal_num_tokens = 21}));
  class BeginWhenReady final : public ReadSink {
   public:
    explicit BeginWhenReady(std::function<void()> begin) : begin_(std::move(begin)) {}
    absl::Status OnRecord(const SampleRecord& record) override {
      statuses.push_back(record.status);
      if (record.index == 0) begin_();
      return absl::OkStatus();
    }
    absl::Status OnPiece(const ReadPiece&) override { return absl::OkStatus(); }

    std::vector<SampleStatus> statuses;

   private:
    const std::function<void()> begin_;
  };
  BeginWhenReady sink([&] {
    EXPECT_OK(PutRows(*run, routes, {0, 10}, {.sample = "late"}));
    EXPECT_OK(PutRows(*run, routes, {10, 20}, {.sample = "late", .seal_num_tokens = 21}));
  });
  ASSERT_OK(run->Read({.samples = {{.sample = "ready"}, {.sample = "late"}}, .wait = true}, sink, kCallTimeout));
  EXPECT_EQ(sink.statuses, (std::vector<SampleStatus>{SampleStatus::kOk, SampleStatus::kOk}));

  ReadRequest never{.samples = {{.sample = "never"}}, .wait = true};
  ASSERT_OK_AND_ASSIGN(auto read, run->ReadRows(never, std::chrono::seconds(1)));
  EXPECT_EQ(read[0].record.status, SampleStatus::kNotFound);
  never.only_begun = true;
  ASSERT_OK_AND_ASSIGN(read, run->ReadRows(never, kCallTimeout));
  EXPECT_EQ(read[0].record.status, SampleStatus::kNotFound);
}

TEST_F(AppendReadTest, WaitingReadEndsWithNotReadyAtItsDeadline) {
  const Geometry geometry = Geometry::Uniform(2, 16, 2);
  const auto run = OpenRun("wait", geometry);
  ASSERT_OK(PutRows(*run, MakeRandomRoutes(geometry, 20, 1), {0, 20}, {.sample = "a"}));
  ASSERT_OK_AND_ASSIGN(const auto read,
                       run->ReadRows({.samples = {{.sample = "a"}}, .wait = true}, std::chrono::seconds(1)));
  EXPECT_EQ(read[0].record.status, SampleStatus::kNotReady);
}

TEST_F(AppendReadTest, ForkReadsAsItsParentAndGoesItsOwnWay) {
  const Geometry geometry = Geometry::Uniform(3, 128, 4);
  const auto run = OpenRun("fork", geometry);
  const RandomRoutes parent = MakeRandomRoutes(geometry, 600, 1);
  RandomRoutes child = MakeRandomRoutes(geometry, 800, 2);
  for (int32_t i = 0; i < 3; ++i) std::copy_n(parent.layers[i].begin(), 333 * 4, child.layers[i].begin());
  ASSERT_OK(PutRows(*run, parent, {0, 600}, {.sample = "p", .seal_num_tokens = 601}));
  ASSERT_OK(PutRows(*run, child, {333, 800},
                    {.sample = "c", .seal_num_tokens = 801, .prefix_sample = "p", .prefix_rows = 333}));
  ASSERT_OK(run->Release({"p"}));
  EXPECT_THAT(run->Stat("p"), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  ExpectRows(*run, "c", child, {{0, 800}});
}

// The server states its limit for a message, and the appender must stay below it.
TEST_F(AppendReadTest, ALongAppendGoesThroughSmallMessages) {
  StartServer({.max_message_bytes = 256 << 10});
  const auto run = OpenRun("small", Geometry::Uniform(40, 128, 8));
  const RandomRoutes routes = MakeRandomRoutes(run->geometry(), 2000, 1);
  const std::vector<int32_t> tensor = routes.Tensor({0, 2000});
  const auto appender = run->NewAppender({.append_timeout = kCallTimeout});
  ASSERT_OK(
      appender->Append({.sample = "a", .seal_num_tokens = 2001}, Int32Tensor(run->geometry(), 2000), AsBytes(tensor)));
  ASSERT_OK(appender->Flush(kCallTimeout));
  ExpectRows(*run, "a", routes, {{0, 2000}});
}

}  // namespace
}  // namespace routing_replay::testing
