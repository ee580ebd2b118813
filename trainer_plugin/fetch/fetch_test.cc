// From a plan to an index buffer, with a scripted read: what falls back, and what is rejected.
#include "routing_replay/trainer/fetch.h"

#include "routing_replay/trainer/realign.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kTimeout(1);

// Answers every read with the scripted records, each followed by its bytes in RAW, all layers and rows in one piece.
class ScriptedRun final : public Run {
 public:
  explicit ScriptedRun(const Geometry& geometry) : geometry_(geometry) {}

  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override {
    request_ = request;
    for (const SampleRecord& record : records) {
      if (absl::Status status = sink.OnRecord(record); !status.ok()) return status;
      if (record.status != SampleStatus::kOk) continue;
      const RowRange rows = request.samples[record.index].rows.front();
      const auto layers = static_cast<int32_t>(request.layers.size());
      const int64_t bytes = layers * rows.size() * geometry_.layer(0).top_k;
      std::vector<uint8_t> brief;
      std::vector<uint8_t>& received = sink.staging() == nullptr ? brief : *sink.staging();
      received.insert(received.end(), bytes, 3);
      const ReadPiece piece{.sample_index = record.index,
                            .layer_begin = 0,
                            .layer_count = layers,
                            .rows = rows,
                            .bytes = absl::MakeConstSpan(received).last(bytes)};
      if (absl::Status status = sink.OnPiece(piece); !status.ok()) return status;
    }
    return end;
  }
  const ReadRequest& request() const { return request_; }

  const std::string& name() const override { return name_; }
  const Geometry& geometry() const override { return geometry_; }
  const RunSettings& settings() const override { return settings_; }
  const ReleaseOutcome& dropped() const override { return dropped_; }
  std::unique_ptr<Appender> NewAppender(AppenderOptions) override { return nullptr; }
  absl::StatusOr<AppendOutcome> Put(const AppendOptions&, const TensorDescription&,
                                    absl::Span<const uint8_t>) override {
    return unused_;
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions&, int64_t) override { return unused_; }
  absl::StatusOr<SampleState> Truncate(absl::string_view, Producer, int64_t, std::optional<int64_t>) override {
    return unused_;
  }
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string>, Producer) override {
    return unused_;
  }
  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>>, Producer) override {
    return unused_;
  }
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string>, const ReleaseOptions&) override {
    return unused_;
  }
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t, int64_t, const ReleaseOptions&) override { return unused_; }
  absl::StatusOr<ReleaseOutcome> Drop() override { return unused_; }

  std::vector<SampleRecord> records;
  absl::Status end;  // The read's status after the records.

 private:
  const Geometry geometry_;
  const std::string name_ = "scripted";
  const RunSettings settings_;
  const ReleaseOutcome dropped_;
  const absl::Status unused_ = absl::UnimplementedError("not scripted");
  ReadRequest request_;
};

// Two sequences, each of four tokens and so three rows, on one rank that owns both layers.
class FetchTest : public ::testing::Test {
 protected:
  // Fetches twice: first into a staging buffer, then directly into an index buffer. Both must give the same rows.
  absl::StatusOr<StagedRows> Fetch(MissingPolicy missing) {
    const FetchOptions options{.missing = missing, .timeout = kTimeout};
    auto staged = FetchSlices(run_, plan_, sequences_, options);
    std::vector<uint8_t> indices(layout_.bytes(), 9);
    std::vector<RowState> states(layout_.rows());
    const auto moved = FetchInto(run_, plan_, sequences_, options,
                                 {layout_, rows_, {}, absl::MakeSpan(indices), absl::MakeSpan(states)});
    EXPECT_EQ(moved.status(), staged.status());
    if (moved.ok() && staged.ok()) ExpectSame(*moved, indices, states, *staged);
    return staged;
  }

  void ExpectSame(const RealignedRows& moved, const std::vector<uint8_t>& moved_indices,
                  const std::vector<RowState>& moved_states, const StagedRows& staged) const {
    EXPECT_EQ(moved.fallback_sequences, staged.fallback_sequences);
    ASSERT_EQ(moved.records.size(), staged.records.size());
    for (size_t i = 0; i < moved.records.size(); ++i) EXPECT_EQ(moved.records[i].status, staged.records[i].status);
    ASSERT_OK_AND_ASSIGN(const RealignPlan plan, Plan(staged));
    std::vector<uint8_t> indices(layout_.bytes());
    std::vector<RowState> states(layout_.rows());
    ASSERT_OK(Realign(layout_, plan, staged.staging, absl::MakeSpan(indices), absl::MakeSpan(states)));
    EXPECT_EQ(moved_indices, indices);
    EXPECT_EQ(moved_states, states);
    EXPECT_EQ(moved.replayed_rows, plan.replayed_rows);
  }

  absl::StatusOr<RealignPlan> Plan(const StagedRows& staged) const {
    return PlanRealign(layout_, {.pieces = staged.pieces, .rows = rows_, .unrecorded = staged.unrecorded});
  }

  std::vector<RowState> StatesOf(const StagedRows& staged) const {
    const auto plan = Plan(staged);
    EXPECT_OK(plan);
    return plan.ok() ? plan->states : std::vector<RowState>();
  }

  const Geometry geometry_ = Geometry::Uniform(2, 8, 2);
  const ReplayPlan plan_ =
      *MakeReplayPlan(geometry_, *LayerTable::Create({.num_layers = 2}),
                      {.sequences = {{4, 3}, {4, 3}}, .cu_seqlens_padded = {0, 4, 8}, .total_rows = 8}, {});
  const BufferLayout layout_ = *BufferLayout::Create(geometry_, {.ordinals = {0, 1}, .rows = plan_.row_map.rows});
  const ShownRows rows_{ExpandRowMap(plan_.row_map)};
  std::vector<FetchSequence> sequences_ = {{.sample = "a", .num_tokens = 4}, {.sample = "b"}};
  ScriptedRun run_{geometry_};
};

constexpr RowState kReplayed = RowState::kReplayed, kLive = RowState::kUnrecorded;

TEST_F(FetchTest, AsksForThePlansSlices) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk}, {.index = 1, .status = SampleStatus::kOk}};
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, Fetch(MissingPolicy::kStrict));
  EXPECT_THAT(run_.request().layers, ElementsAre(0, 1));
  ASSERT_EQ(run_.request().samples.size(), 2u);
  EXPECT_EQ(run_.request().samples[0].sample, "a");
  EXPECT_EQ(run_.request().samples[0].num_tokens, 4);
  EXPECT_THAT(run_.request().samples[1].rows, ElementsAre(RowRange{0, 3}));
  EXPECT_EQ(staged.staging.size(), 2u * 2 * 3 * 2);
  EXPECT_EQ(staged.fallback_sequences, 0);
  EXPECT_THAT(StatesOf(staged),
              ElementsAre(kReplayed, kReplayed, kReplayed, kLive, kReplayed, kReplayed, kReplayed, kLive));
}

TEST_F(FetchTest, AMissingSampleIsLiveThroughout) {
  run_.records = {{.index = 0, .status = SampleStatus::kNotFound}, {.index = 1, .status = SampleStatus::kOk}};
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, Fetch(MissingPolicy::kLive));
  EXPECT_EQ(staged.fallback_sequences, 1);
  EXPECT_THAT(StatesOf(staged), ElementsAre(kLive, kLive, kLive, kLive, kReplayed, kReplayed, kReplayed, kLive));
}

TEST_F(FetchTest, ASampleTakenBackIsLiveThroughout) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk},
                  {.index = 0, .status = SampleStatus::kLost},
                  {.index = 1, .status = SampleStatus::kOk, .unrecorded = {{1, 2}}}};
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, Fetch(MissingPolicy::kLive));
  EXPECT_EQ(staged.fallback_sequences, 1);
  EXPECT_EQ(staged.records[0].status, SampleStatus::kLost);
  EXPECT_THAT(StatesOf(staged), ElementsAre(kLive, kLive, kLive, kLive, kReplayed, kLive, kReplayed, kLive));
}

// The record of sample 0 comes twice, as if its server had failed in the middle and another one had begun again.
TEST_F(FetchTest, ASampleThatBeginsAgainIsStagedOnce) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk},
                  {.index = 0, .status = SampleStatus::kOk, .unrecorded = {{0, 1}}},
                  {.index = 1, .status = SampleStatus::kOk}};
  ASSERT_OK_AND_ASSIGN(const StagedRows staged, Fetch(MissingPolicy::kLive));
  EXPECT_EQ(staged.pieces.size(), 2u);
  EXPECT_EQ(staged.fallback_sequences, 0);
  EXPECT_THAT(StatesOf(staged),
              ElementsAre(kLive, kReplayed, kReplayed, kLive, kReplayed, kReplayed, kReplayed, kLive));
}

TEST_F(FetchTest, StrictNamesTheSample) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk},
                  {.index = 1, .status = SampleStatus::kTokensMismatch, .message = "other tokens"}};
  const auto staged = Fetch(MissingPolicy::kStrict);
  EXPECT_THAT(staged, Fails(absl::StatusCode::kFailedPrecondition, Reason::kOtherTokens));
  EXPECT_EQ(GetErrorDetail(staged.status())->sample, "b");
  EXPECT_THAT(std::string(staged.status().message()), HasSubstr("TOKENS_MISMATCH: other tokens"));
}

TEST_F(FetchTest, WhatHasNoTokensToCompareFallsBackThoughItWasAgreedOn) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk, .content_id = 4},
                  {.index = 1, .status = SampleStatus::kTokensNotKnown, .message = "tokens not known"}};
  sequences_[0].content_id = 4;
  sequences_[1].content_id = 5;
  ASSERT_OK_AND_ASSIGN(const StagedRows live, Fetch(MissingPolicy::kLive));
  EXPECT_THAT(StatesOf(live), ElementsAre(kReplayed, kReplayed, kReplayed, kLive, kLive, kLive, kLive, kLive));
  ASSERT_OK_AND_ASSIGN(const StagedRows drop, Fetch(MissingPolicy::kDrop));
  EXPECT_EQ(drop.fallback_sequences, 1);
  EXPECT_THAT(Fetch(MissingPolicy::kStrict), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOtherTokens));
  run_.records[1].status = SampleStatus::kTokensMismatch;
  EXPECT_THAT(Fetch(MissingPolicy::kLive), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOtherTokens));
}

TEST_F(FetchTest, WhatDoesNotComeFallsBack) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk}};
  for (const absl::Status& end : {absl::DeadlineExceededError("too late"), absl::UnavailableError("gone")}) {
    run_.end = end;
    EXPECT_EQ(Fetch(MissingPolicy::kStrict).status(), end);
    ASSERT_OK_AND_ASSIGN(const StagedRows live, Fetch(MissingPolicy::kLive));
    EXPECT_EQ(live.fallback_sequences, 2);  // The sample of the last record may be incomplete.
    EXPECT_EQ(live.records[1].status, SampleStatus::kNotReady);
    EXPECT_EQ(live.records[1].message, std::string(end.message()));
    EXPECT_THAT(StatesOf(live), ::testing::Each(kLive));
    ASSERT_OK_AND_ASSIGN(const StagedRows drop, Fetch(MissingPolicy::kDrop));
    EXPECT_EQ(drop.fallback_sequences, 2);
    sequences_[1].content_id = 5;
    EXPECT_THAT(Fetch(MissingPolicy::kLive), Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
    sequences_[1].content_id.reset();
  }
  run_.end = absl::PermissionDeniedError("no");
  EXPECT_EQ(Fetch(MissingPolicy::kLive).status(), run_.end);
}

TEST_F(FetchTest, AnInspectionAsksForOneRowOfEachSample) {
  run_.records = {{.index = 0, .status = SampleStatus::kNotFound},
                  {.index = 1, .status = SampleStatus::kOutOfRange, .num_tokens = 1}};
  ASSERT_OK_AND_ASSIGN(const auto records, InspectSamples(run_, sequences_, {.wait = false, .timeout = kTimeout}));
  EXPECT_FALSE(run_.request().wait);
  EXPECT_THAT(run_.request().layers, ElementsAre(0));
  EXPECT_THAT(run_.request().samples[0].rows, ElementsAre(RowRange{2, 3}));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].status, SampleStatus::kNotFound);
  EXPECT_EQ(records[1].status, SampleStatus::kOutOfRange);
  ASSERT_OK_AND_ASSIGN(const auto none, InspectSamples(run_, {}, {}));
  EXPECT_TRUE(none.empty());
}

TEST_F(FetchTest, AnInspectionTakesNoSampleThatMayGrow) {
  InspectSink sink(sequences_);
  EXPECT_OK(sink.OnRecord({.index = 0, .status = SampleStatus::kOk, .committed_rows = 2, .content_id = 7}));
  EXPECT_OK(sink.OnRecord({.index = 1, .status = SampleStatus::kOk, .num_tokens = 4, .content_id = 8}));
  EXPECT_EQ(sink.records()[0].status, SampleStatus::kNotReady);
  EXPECT_EQ(sink.records()[0].message, "not sealed; 2 rows committed");
  EXPECT_EQ(sink.records()[1].status, SampleStatus::kOk);
}

TEST_F(FetchTest, AnInspectionSaysWhatCameInTime) {
  run_.records = {{.index = 0, .status = SampleStatus::kLost}};
  run_.end = absl::DeadlineExceededError("too late");
  ASSERT_OK_AND_ASSIGN(const auto records, InspectSamples(run_, sequences_, {}));
  EXPECT_EQ(records[0].status, SampleStatus::kLost);
  EXPECT_EQ(records[1].status, SampleStatus::kNotReady);
  EXPECT_EQ(records[1].message, "too late");
  run_.end = absl::UnavailableError("gone");
  EXPECT_EQ(InspectSamples(run_, sequences_, {}).status(), run_.end);
}

TEST_F(FetchTest, RejectsAPlanOfAnotherGeometry) {
  const Geometry other = Geometry::Uniform(2, 8, 3);
  ScriptedRun run(other);
  EXPECT_THAT(FetchSlices(run, plan_, sequences_, {.missing = MissingPolicy::kLive}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kGeometryMismatch));
}

TEST_F(FetchTest, RejectsABufferOfAnotherPlan) {
  run_.records = {{.index = 0, .status = SampleStatus::kOk}, {.index = 1, .status = SampleStatus::kOk}};
  std::vector<uint8_t> indices(layout_.bytes());
  std::vector<RowState> states(layout_.rows());
  const auto fetch = [&](const BufferLayout& layout, const ShownRows& rows, size_t bytes) {
    return FetchInto(run_, plan_, sequences_, {.timeout = kTimeout},
                     {layout, rows, {}, absl::MakeSpan(indices).first(bytes), absl::MakeSpan(states)});
  };
  const auto one_layer = BufferLayout::Create(geometry_, {.ordinals = {0}, .rows = layout_.rows()});
  EXPECT_THAT(fetch(*one_layer, rows_, one_layer->bytes()), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(fetch(layout_, ShownRows({}), indices.size()), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(fetch(layout_, rows_, indices.size() - 1), Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  EXPECT_OK(fetch(layout_, rows_, indices.size()));
}

TEST_F(FetchTest, RejectsAPlanOfMoreSequences) {
  sequences_.pop_back();
  EXPECT_THAT(Fetch(MissingPolicy::kLive), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

}  // namespace
}  // namespace routing_replay::trainer
