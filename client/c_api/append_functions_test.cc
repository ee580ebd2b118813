#include <array>
#include <atomic>
#include <deque>

#include "client/c_api/testing/c_api_fixture.h"

namespace routing_replay::client {
namespace {

using testing::Do;
using ::testing::ElementsAre;

class CAppendTest : public CApiTest {
 protected:
  void TearDown() override {
    rr_object_free(appender_);
    CApiTest::TearDown();
  }
  void Open(rr_appender_options options) { ASSERT_DONE(rr_run_new_appender(c_run_, &options, &appender_)); }
  // Rows [begin, end) of ids_; valid until the test ends.
  rr_append Append(const std::string& sample, int64_t begin, int64_t end) {
    const auto& shape = shapes_.emplace_back(std::array<int64_t, 3>{end - begin, 1, 1});
    const auto& tensor = tensors_.emplace_back(rr_tensor{.data = ids_.data() + begin,
                                                         .size = static_cast<size_t>(end - begin),
                                                         .encoding = Text("RAW"),
                                                         .dtype = Text("U8"),
                                                         .layer_basis = Text("MOE_LAYERS"),
                                                         .shape = shape.data(),
                                                         .shape_count = 3});
    names_.push_back(sample);
    return {.sample = Text(names_.back()), .rows = &tensor, .row_start = begin, .weight_version = -1};
  }
  int64_t Counter(const std::string& name) {
    const rr_counters* counters = nullptr;
    EXPECT_DONE(rr_appender_metrics(appender_, &counters));
    int64_t value = -1;
    for (size_t i = 0; i < counters->count; ++i) {
      if (String(counters->data[i].name) == name) value = counters->data[i].value;
    }
    rr_free(counters);
    return value;
  }
  struct Committed {
    std::string status, reason;
    int64_t rows = 0;
  };
  Committed Commit(const std::string& sample, rr_integer num_tokens = {}, const rr_tokens* tokens = nullptr) {
    const rr_commit* commit = nullptr;
    EXPECT_DONE(rr_run_commit(c_run_, Text(sample), num_tokens, tokens, {}, &kBlocking, &commit));
    const Committed said{String(commit->status), commit->error == nullptr ? "" : String(commit->error->reason),
                         commit->committed_rows};
    rr_free(commit);
    return said;
  }

  const std::vector<uint8_t> ids_ = testing::ModelIds(random_, 1 << 20);
  std::deque<std::array<int64_t, 3>> shapes_;
  std::deque<rr_tensor> tensors_;
  std::deque<std::string> names_;
  rr_appender* appender_ = nullptr;
};

constexpr rr_appender_options kDefaults{.max_queued_bytes = -1, .queue_timeout_ms = -1, .append_timeout_ms = -1};

TEST_F(CAppendTest, ManyInOneCall) {
  Open(kDefaults);
  rr_append appends[] = {Append("a", 0, 10), Append("b", 0, 5), Append("a", 10, 30)};
  appends[2].seal = 1;
  uint64_t sequences[3] = {};
  size_t dropped = 7;
  ASSERT_DONE(rr_appender_append(appender_, appends, 3, RR_BLOCK, &kBlocking, sequences, &dropped));
  EXPECT_THAT(sequences, ElementsAre(1, 2, 3));
  EXPECT_EQ(dropped, 0U);
  ASSERT_DONE(rr_appender_flush(appender_, &kBlocking));
  ExpectStored("a", {ids_.begin(), ids_.begin() + 30});
  EXPECT_EQ(service_.Sample("a").num_tokens, 31);

  appends[1].row_start = -1;
  const Failure wrong(rr_appender_append(appender_, appends, 3, RR_BLOCK, &kBlocking, sequences, &dropped));
  EXPECT_EQ(wrong.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.sample, "b");
  EXPECT_THAT(sequences, ElementsAre(1, 2, 3));
  EXPECT_EQ(Counter("appends"), 4);
  appends[1] = Append("b", 0, 5);
  appends[1].attempt = {-1, 1};
  EXPECT_EQ(Failure(rr_appender_append(appender_, appends, 3, RR_BLOCK, &kBlocking, sequences, &dropped)).field,
            "append.attempt");
  appends[1].producer = 9;
  EXPECT_EQ(Failure(rr_appender_append(appender_, appends, 3, RR_BLOCK, &kBlocking, sequences, &dropped)).code,
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CAppendTest, AFlushNamesWhatFailed) {
  Open(kDefaults);
  rr_append appends[] = {Append("gap", 5, 10), Append("good", 0, 5), Append("hole", 5, 10)};
  uint64_t sequences[3];
  ASSERT_DONE(rr_appender_append(appender_, appends, 3, RR_BLOCK, &kBlocking, sequences, nullptr));
  rr_error* error = rr_appender_flush(appender_, &kBlocking);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(String(error->reason), "GAP");
  ASSERT_EQ(error->failed_count, 2U);
  EXPECT_EQ(String(error->failed_samples[1]), "hole");
  ASSERT_EQ(error->failures_count, 2U);
  EXPECT_EQ(String(error->failures[0]->sample), "gap");
  rr_free(error);
  EXPECT_DONE(rr_appender_flush(appender_, &kBlocking));
}

TEST_F(CAppendTest, OutcomesAreGivenOnceAndAFlushWaitsUntilTheyAreSeen) {
  rr_appender_options options = kDefaults;
  options.keep_outcomes = 1;
  Open(options);
  const rr_append append = Append("a", 0, 10);
  uint64_t sequence = 0;
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr));
  const rr_outcomes* outcomes = nullptr;
  ASSERT_DONE(rr_appender_outcomes(appender_, &kBlocking, &outcomes));
  ASSERT_EQ(outcomes->count, 1U);
  EXPECT_EQ(outcomes->data[0].sequence, 1U);
  EXPECT_EQ(outcomes->data[0].committed_rows, 10);
  rr_free(outcomes);
  const rr_call now{.timeout_ms = 0};
  EXPECT_EQ(Failure(rr_appender_flush(appender_, &now)).code, absl::StatusCode::kDeadlineExceeded);

  TestQueue queue;
  const rr_call call = queue.Call(1);
  const rr_outcomes* last = nullptr;
  ASSERT_DONE(rr_appender_outcomes(appender_, &call, &last));
  EXPECT_DONE(rr_appender_flush(appender_, &kBlocking));
  EXPECT_DONE(rr_appender_close(appender_, &kBlocking));
  EXPECT_EQ(queue.Wait(1).at(1).message, "");
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->count, 0U);
  rr_free(last);
  EXPECT_EQ(Failure(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr)).code,
            absl::StatusCode::kCancelled);
}

TEST_F(CAppendTest, AWaitForOutcomesCanBeCancelled) {
  rr_appender_options options = kDefaults;
  options.keep_outcomes = 1;
  Open(options);
  TestQueue queue;
  const rr_call call = queue.Call(1);
  const rr_outcomes* outcomes = nullptr;
  ASSERT_DONE(rr_appender_outcomes(appender_, &call, &outcomes));
  rr_queue_cancel(queue.get(), 1);
  EXPECT_EQ(queue.Wait(1).at(1).code, absl::StatusCode::kCancelled);
  const rr_call now{.timeout_ms = 0};
  EXPECT_EQ(Failure(rr_appender_outcomes(appender_, &now, &outcomes)).code, absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CAppendTest, AFullQueueBlocksDropsOrRaises) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  for (const int32_t on_full : {RR_BLOCK, RR_DROP, RR_RAISE}) {
    rr_appender_options options = kDefaults;
    options.max_queued_bytes = 1;
    options.queue_timeout_ms = 20;
    options.on_full = on_full;
    Open(options);
    const rr_append appends[] = {Append("a", 0, 100), Append("a", 100, 200)};
    uint64_t sequences[2] = {};
    size_t dropped = 0;
    const Failure failure(rr_appender_append(appender_, appends, 2, RR_BLOCK, &kBlocking, sequences, &dropped));
    EXPECT_EQ(failure.reason, on_full == RR_RAISE ? "OVER_BUDGET" : "");
    EXPECT_EQ(dropped, on_full == RR_RAISE ? 0U : 1U);
    EXPECT_EQ(Counter("open_appends"), on_full == RR_RAISE ? 1 : 2);
    rr_object_free(std::exchange(appender_, nullptr));
  }
  rr_appender_options options = kDefaults;
  options.max_queued_bytes = 1;
  Open(options);
  const rr_append appends[] = {Append("a", 0, 100), Append("a", 100, 200)};
  uint64_t sequences[2] = {};
  size_t dropped = 0;
  const auto append = [&](size_t count, int32_t on_full) {
    return Failure(rr_appender_append(appender_, appends, count, on_full, &kBlocking, sequences, &dropped));
  };
  EXPECT_EQ(append(1, RR_RAISE).code, absl::StatusCode::kOk);
  EXPECT_EQ(append(1, RR_RAISE).reason, "OVER_BUDGET");
  EXPECT_EQ(Counter("open_appends"), 1);
  EXPECT_EQ(append(2, RR_DROP).code, absl::StatusCode::kOk);
  EXPECT_EQ(dropped, 2U);
  EXPECT_EQ(append(1, 3).field, "on_full");
  rr_object_free(std::exchange(appender_, nullptr));
  options.on_full = 3;
  EXPECT_EQ(Failure(rr_run_new_appender(c_run_, &options, &appender_)).field, "on_full");
}

TEST_F(CAppendTest, WithAQueueSmallAppendsAreQueuedAtOnceAndNoneOvertakes) {
  std::atomic<bool> reject{false};
  service_.OnAppend([&](const AppendRequest&) { return reject ? Do::kReject : Do::kAnswer; });
  rr_appender_options options = kDefaults;
  options.max_queued_bytes = 2000;
  Open(options);
  TestQueue queue;
  uint64_t sequences[21] = {};
  size_t dropped[21] = {};
  rr_append append = Append("s", 0, 100);
  rr_call call = queue.Call(0);
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &call, &sequences[0], &dropped[0]));
  EXPECT_EQ(sequences[0], 1U);
  EXPECT_EQ(queue.Wait(1).at(0).message, "");
  ASSERT_DONE(rr_appender_flush(appender_, &kBlocking));
  // A large append is encoded on a thread of the library. It then fills the queue until the server accepts some of it,
  // so that the small appends after it wait.
  reject = true;
  append = Append("s", 100, 500'100);
  call = queue.Call(1);
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &call, &sequences[1], &dropped[1]));
  for (int64_t i = 2; i < 21; ++i) {
    append = Append("s", 500'100 + 10 * (i - 2), 500'100 + 10 * (i - 1));
    call = queue.Call(i);
    ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &call, &sequences[i], &dropped[i]));
  }
  rr_queue_cancel(queue.get(), 20);
  auto ends = queue.Wait(2);
  EXPECT_EQ(ends[1].message, "");
  EXPECT_EQ(ends[20].code, absl::StatusCode::kCancelled);
  reject = false;
  for (const auto& [tag, failure] : queue.Wait(18)) EXPECT_EQ(failure.message, "") << tag;
  for (uint64_t i = 1; i < 20; ++i) EXPECT_EQ(sequences[i], i + 1) << i;
  EXPECT_EQ(sequences[20], 0U);
  append = Append("s", 500'280, 500'300);
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, sequences, dropped));
  ASSERT_DONE(rr_appender_flush(appender_, &kBlocking));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 500'300});
}

TEST_F(CAppendTest, CommitSaysWhatBecameOfASample) {
  Open(kDefaults);
  const rr_append append = Append("s", 0, 9);
  uint64_t sequence = 0;
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr));
  Committed said = Commit("s");
  EXPECT_EQ(said.status, "committed");
  EXPECT_EQ(said.rows, 9);
  const std::vector<int64_t> tokens(21, 3);
  const rr_tokens given{.data = tokens.data(), .size = 21 * 8, .dtype = Text("int64"), .axes = 1};
  said = Commit("s", {}, &given);
  EXPECT_EQ(said.status, "marked");
  EXPECT_EQ(said.reason, "NOT_COMMITTED");
  EXPECT_EQ(said.rows, 20);
  EXPECT_EQ(service_.Sample("s").num_tokens, 21);
  EXPECT_EQ(service_.Sample("s").rows[19].token, 3U);
  EXPECT_EQ(Commit("never").status, "missing");
  EXPECT_EQ(Commit("never").reason, "NO_SAMPLE");
  const rr_commit* commit = nullptr;
  EXPECT_EQ(Failure(rr_run_commit(c_run_, Text("s"), {0, 1}, nullptr, {}, &kBlocking, &commit)).field, "num_tokens");

  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr));
  TestQueue queue;
  const rr_call call = queue.Call(5);
  ASSERT_DONE(rr_run_commit(c_run_, Text("s"), {}, nullptr, {}, &call, &commit));
  rr_queue_cancel(queue.get(), 5);
  EXPECT_EQ(queue.Wait(1).at(5).code, absl::StatusCode::kCancelled);
}

TEST_F(CAppendTest, MayBeFreedAtAnyTime) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  for (int32_t keep = 0; keep < 2; ++keep) {
    rr_appender_options options = kDefaults;
    options.keep_outcomes = keep;
    Open(options);
    const rr_append append = Append("s", 0, 9);
    uint64_t sequence = 0;
    ASSERT_DONE(rr_appender_append(appender_, &append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr));
    rr_object_free(std::exchange(appender_, nullptr));
  }
  rr_object_free(nullptr);
}

}  // namespace
}  // namespace routing_replay::client
