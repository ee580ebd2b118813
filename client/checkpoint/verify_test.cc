// Tests what verify finds in a run that is damaged in every way that a reader can notice.
#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/str_cat.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kBlockRows = 16;

enum class Kind {
  kFoundByClient,  // The read ends with DATA_LOSS.
  kFoundByServer,  // The server withdraws the sample in the middle, and the read continues.
  kLostWhole,
  kReleased,
  kAway,  // The server that has the sample does not answer.
};

struct Damage {
  Kind kind = Kind::kLostWhole;
  int64_t row = 0;
  int32_t layer = 0;  // Ordinal.
};

absl::Status None() { return absl::UnimplementedError("not in this test"); }

// Some of the samples are damaged at one row of one layer.
class FakeRun final : public Run {
 public:
  std::map<std::string, int64_t> samples;  // The number of rows of each sample.
  std::map<std::string, Damage> damage;
  absl::Status read_fails;
  int reads = 0;

  const std::string& name() const override { return name_; }
  const Geometry& geometry() const override { return geometry_; }
  const RunSettings& settings() const override { return settings_; }
  const ReleaseOutcome& dropped() const override { return dropped_; }

  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>>, Producer) override {
    std::vector<SampleState> states;
    for (const auto& [sample, rows] : samples) {
      states.push_back({.sample = sample, .committed_rows = rows, .num_tokens = rows + 1});
    }
    return states;
  }

  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds) override {
    ++reads;
    if (!read_fails.ok()) return read_fails;
    for (size_t i = 0; i < request.samples.size(); ++i) {
      absl::Status status = ReadSample(request, static_cast<int32_t>(i), sink);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Appender> NewAppender(AppenderOptions) override { return nullptr; }
  absl::StatusOr<AppendOutcome> Put(const AppendOptions&, const TensorDescription&,
                                    absl::Span<const uint8_t>) override {
    return None();
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions&, int64_t) override { return None(); }
  absl::StatusOr<SampleState> Truncate(absl::string_view, Producer, int64_t, std::optional<int64_t>) override {
    return None();
  }
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string>, Producer) override { return None(); }
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string>, const ReleaseOptions&) override {
    return None();
  }
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t, int64_t, const ReleaseOptions&) override { return None(); }
  absl::StatusOr<ReleaseOutcome> Drop() override { return None(); }

 private:
  static absl::Status Tell(ReadSink& sink, int32_t index, SampleStatus status) {
    return sink.OnRecord({.index = index, .status = status, .message = SampleStatusName(status)});
  }

  absl::Status ReadSample(const ReadRequest& request, int32_t index, ReadSink& sink) {
    const SampleRead& asked = request.samples[static_cast<size_t>(index)];
    const auto found = damage.find(asked.sample);
    const Damage* here = found == damage.end() ? nullptr : &found->second;
    if (here != nullptr && here->kind == Kind::kReleased) return Tell(sink, index, SampleStatus::kNotFound);
    if (here != nullptr && here->kind == Kind::kAway) return Tell(sink, index, SampleStatus::kUnavailable);
    if (here != nullptr && here->kind == Kind::kLostWhole) return Tell(sink, index, SampleStatus::kLost);
    const int64_t recorded = samples.at(asked.sample);
    const SampleRecord record{
        .index = index, .status = SampleStatus::kOk, .committed_rows = recorded, .num_tokens = recorded + 1};
    if (absl::Status status = sink.OnRecord(record); !status.ok()) return status;
    const RowRange rows = asked.rows.empty() ? RowRange{0, recorded} : asked.rows[0];
    const auto layers = static_cast<int32_t>(request.layers.empty() ? 4 : request.layers.size());
    for (const RowRange part : SplitAtWindows(rows, kBlockRows)) {
      if (here != nullptr && part.contains(here->row) && Asks(request, here->layer)) {
        if (here->kind == Kind::kFoundByServer) return Tell(sink, index, SampleStatus::kLost);
        return MakeError(absl::StatusCode::kDataLoss, "the bytes do not match",
                         {.reason = Reason::kChecksum,
                          .sample = asked.sample,
                          .row = part.begin,
                          .layer = geometry_.layer(here->layer).layer_id});
      }
      const std::vector<uint8_t> bytes(static_cast<size_t>(part.size() * 2 * layers));
      const absl::Status status =
          sink.OnPiece({.sample_index = index, .layer_count = layers, .rows = part, .bytes = bytes});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  bool Asks(const ReadRequest& request, int32_t ordinal) const {
    const int32_t id = geometry_.layer(ordinal).layer_id;
    return request.layers.empty() ||
           std::find(request.layers.begin(), request.layers.end(), id) != request.layers.end();
  }

  const std::string name_ = "run";
  const Geometry geometry_ =
      *Geometry::Create({.num_layers = 12, .moe_layer_ids = {3, 5, 7, 11}, .num_experts = {8}, .top_k = {2}});
  const RunSettings settings_{.block_rows = kBlockRows};
  const ReleaseOutcome dropped_;
};

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() {
    for (int i = 0; i < 10; ++i) run_.samples[absl::StrCat("s", i)] = 100;
  }

  FakeRun run_;
};

TEST_F(VerifyTest, ARunThatIsWhole) {
  run_.samples["empty"] = 0;
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome outcome, VerifyRun(run_));
  EXPECT_EQ(outcome.samples, 11);
  EXPECT_EQ(outcome.rows, 1000);
  EXPECT_EQ(outcome.bytes, 1000 * 2 * 4);
  EXPECT_THAT(outcome.damaged, IsEmpty());
  EXPECT_EQ(run_.reads, 1);
}

TEST_F(VerifyTest, EveryDamageIsNamed) {
  for (const Kind kind : {Kind::kFoundByClient, Kind::kFoundByServer}) {
    for (const int64_t row : {0, 15, 16, 50, 99}) {
      for (const int32_t layer : {0, 1, 3}) {
        run_.damage = {{"s4", {kind, row, layer}}};
        ASSERT_OK_AND_ASSIGN(const VerifyOutcome outcome, VerifyRun(run_));
        EXPECT_EQ(outcome.samples, 10);
        EXPECT_EQ(outcome.rows, 900);
        ASSERT_EQ(outcome.damaged.size(), 1u);
        EXPECT_EQ(outcome.damaged[0].sample, "s4");
        if (kind != Kind::kFoundByClient) continue;
        EXPECT_EQ(outcome.damaged[0].row, row - row % kBlockRows);
        EXPECT_EQ(outcome.damaged[0].layer, run_.geometry().layer(layer).layer_id);
      }
    }
  }
}

TEST_F(VerifyTest, ManyDamagedOnesAreAllFound) {
  run_.damage = {{"s0", {Kind::kFoundByClient, 20, 2}},
                 {"s1", {Kind::kFoundByClient, 0, 0}},
                 {"s3", {Kind::kReleased}},
                 {"s5", {Kind::kLostWhole}},
                 {"s8", {Kind::kFoundByServer, 70, 1}},
                 {"s9", {Kind::kFoundByClient, 99, 3}}};
  ASSERT_OK_AND_ASSIGN(const VerifyOutcome outcome, VerifyRun(run_));
  EXPECT_EQ(outcome.samples, 9);
  EXPECT_EQ(outcome.rows, 400);
  std::vector<std::string> names;
  for (const DamagedSample& sample : outcome.damaged) names.push_back(sample.sample);
  EXPECT_THAT(names, ElementsAre("s0", "s1", "s5", "s8", "s9"));
  EXPECT_FALSE(outcome.damaged[2].row);
  EXPECT_FALSE(outcome.damaged[2].layer);
}

TEST_F(VerifyTest, AServerThatIsGoneIsAnError) {
  run_.read_fails = absl::UnavailableError("gone");
  EXPECT_EQ(VerifyRun(run_).status().code(), absl::StatusCode::kUnavailable);
  run_.read_fails = absl::DataLossError("the read ended after 1 of 10 samples");
  EXPECT_EQ(VerifyRun(run_).status().code(), absl::StatusCode::kDataLoss);
}

// One of several servers is away for a moment. An export without its samples would lose them if the run was dropped.
TEST_F(VerifyTest, OneServerThatIsAwayIsAnErrorOfVerifyAndExport) {
  run_.damage = {{"s4", {Kind::kAway}}};
  EXPECT_EQ(VerifyRun(run_).status().code(), absl::StatusCode::kUnavailable);
  const testing::ScratchDirectory directory;
  const std::string exported = directory.path() + "/exported";
  EXPECT_EQ(ExportRun(run_, exported).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace routing_replay::client
