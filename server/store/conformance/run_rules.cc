// Runs, look-ups, lists, release, expiry and watches.
#include <atomic>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kRollout = Producer::kRollout;

std::vector<std::string> Names(const ListPage& page) {
  std::vector<std::string> names;
  for (const SampleState& state : page.samples) names.push_back(state.sample);
  return names;
}

TEST_P(StoreConformance, RunsAreMadeOnceAndJoined) {
  const Geometry other = Geometry::Uniform(3, 60, 4);
  const RunOptions options{.ttl = hours(1), .block_rows = 64};
  EXPECT_THAT(store_->OpenRun("r", nullptr, options), Fails(kNotFound, Reason::kNoRun));
  EXPECT_THAT(store_->GetRun("r"), Fails(kNotFound, Reason::kNoRun));
  ASSERT_OK_AND_ASSIGN(const RunInfo made, store_->OpenRun("r", &TestGeometry(), options));
  EXPECT_TRUE(made.created);
  EXPECT_EQ(made.options.ttl, options.ttl);
  EXPECT_EQ(made.options.block_rows, options.block_rows);
  ASSERT_TRUE(made.options.durability.has_value());
  for (const Geometry* geometry : {&TestGeometry(), static_cast<const Geometry*>(nullptr)}) {
    ASSERT_OK_AND_ASSIGN(const RunInfo joined, store_->OpenRun("r", geometry, std::nullopt));
    EXPECT_FALSE(joined.created);
    EXPECT_EQ(joined.options, made.options);
    EXPECT_EQ(*joined.geometry, TestGeometry());
  }
  EXPECT_OK(store_->OpenRun("r", nullptr, options));
  EXPECT_OK(store_->OpenRun("r", nullptr, made.options));
  const auto mismatch = Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch);
  EXPECT_THAT(store_->OpenRun("r", &other, std::nullopt), mismatch);
  EXPECT_THAT(store_->OpenRun("r", nullptr, RunOptions{}), mismatch);
  const auto bad = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_THAT(store_->OpenRun("a b", &other, std::nullopt), bad);
  EXPECT_THAT(store_->OpenRun("bad", &other, RunOptions{.block_rows = 33}), bad);
  ASSERT_OK_AND_ASSIGN(const RunInfo packed, store_->OpenRun("packed", &other, std::nullopt));
  EXPECT_EQ(packed.options.codec, other.default_codec());
}

TEST_P(StoreConformance, ARunThatIsMadeAgainHasAnotherGeometryObject) {
  ASSERT_OK_AND_ASSIGN(const RunInfo made, store_->OpenRun("r", &TestGeometry(), std::nullopt));
  ASSERT_OK(store_->DropRun("r"));
  EXPECT_NE(store_->OpenRun("r", &TestGeometry(), std::nullopt)->geometry, made.geometry);
}

TEST_P(StoreConformance, ARunKeepsTheFingerprintOfItsServers) {
  ASSERT_OK_AND_ASSIGN(const RunInfo made, store_->OpenRun("r", &TestGeometry(), RunOptions{.shard_fingerprint = 7}));
  EXPECT_EQ(made.options.shard_fingerprint, 7u);
  RunOptions options = made.options;
  EXPECT_OK(store_->OpenRun("r", nullptr, options));
  options.shard_fingerprint = 8;
  EXPECT_THAT(store_->OpenRun("r", nullptr, options),
              Fails(absl::StatusCode::kFailedPrecondition, Reason::kGeometryMismatch));
  EXPECT_EQ(store_->GetRun("r")->options.shard_fingerprint, 7u);
}

TEST_P(StoreConformance, RunsAreListedWithTheirTotals) {
  OpenRun("another", {.block_rows = kWindow});
  ASSERT_OK(Append({.rows = {0, 50}, .seal_num_tokens = 51}));
  Fill("t", 30);
  ASSERT_OK(Append({.run = "another", .rows = {0, 7}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<RunState> runs, store_->ListRuns());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].info.run, "another");
  EXPECT_EQ(runs[0].samples, 1);
  EXPECT_EQ(runs[1].info.run, "run");
  EXPECT_EQ(runs[1].samples, 2);
  EXPECT_EQ(runs[1].sealed_samples, 1);
  EXPECT_EQ(runs[1].committed_rows, 80);
  EXPECT_GT(runs[1].stored_bytes, runs[0].stored_bytes);
  EXPECT_EQ(store_->GetTotals().samples, 3);
  EXPECT_EQ(store_->GetTotals().stored_bytes, runs[0].stored_bytes + runs[1].stored_bytes);
  ASSERT_OK(store_->Truncate("run", kRollout, "s", 10, std::nullopt));
  EXPECT_EQ(store_->ListRuns()->at(1).sealed_samples, 0);
  EXPECT_EQ(store_->ListRuns()->at(1).committed_rows, 40);
}

TEST_P(StoreConformance, RunsComeInPages) {
  const std::vector<std::string> names = {"a", "a-b", "a/b", "b", "run", "z"};
  for (const std::string& name : names) {
    if (name != "run") OpenRun(name, {.block_rows = kWindow});
  }
  EXPECT_EQ(*store_->CountRuns(), 6);
  for (const size_t limit : {1, 4, 5, 6, 7}) {
    std::vector<std::string> listed;
    std::string token;
    do {
      ASSERT_OK_AND_ASSIGN(const RunPage page, store_->ListRuns(token, limit));
      EXPECT_LE(page.runs.size(), limit);
      for (const RunState& state : page.runs) listed.push_back(state.info.run);
      token = page.next_token;
    } while (!token.empty());
    EXPECT_EQ(listed, names) << limit;
  }
  // A page token is a position in the order, even if the run that it names was dropped.
  ASSERT_OK(store_->DropRun("b"));
  ASSERT_OK_AND_ASSIGN(const RunPage rest, store_->ListRuns("b", 10));
  EXPECT_EQ(rest.runs.size(), 2u);
  EXPECT_EQ(rest.next_token, "");
  EXPECT_EQ(*store_->CountRuns(), 5);
}

TEST_P(StoreConformance, OneRunTellsItsTotals) {
  ASSERT_OK(Append({.rows = {0, 50}, .seal_num_tokens = 51}));
  ASSERT_OK_AND_ASSIGN(const RunState state, store_->StatRun("run"));
  EXPECT_EQ(state.info.run, "run");
  EXPECT_EQ(state.sealed_samples, 1);
  EXPECT_EQ(state.committed_rows, 50);
  EXPECT_EQ(state.stored_bytes, store_->ListRuns()->at(0).stored_bytes);
  EXPECT_THAT(store_->StatRun("none"), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

TEST_P(StoreConformance, ADroppedRunIsGoneAndMayBeMadeAgain) {
  Fill("s", 50);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult dropped, store_->DropRun("run"));
  EXPECT_EQ(dropped.samples, 1);
  EXPECT_EQ(store_->GetTotals().samples, 0);
  EXPECT_EQ(store_->GetTotals().runs, 0);
  EXPECT_THAT(store_->DropRun("run"), Fails(kNotFound, Reason::kNoRun));
  EXPECT_THAT(store_->Stat("run", kRollout, {.sample = "s"}), Fails(kNotFound, Reason::kNoRun));
  EXPECT_THAT(Append({.rows = {0, 1}}), Fails(kNotFound, Reason::kNoRun));
  OpenRun("run", {});
  EXPECT_FALSE(Exists("s"));
}

TEST_P(StoreConformance, SamplesAreFoundByHandle) {
  Fill("s", 50);
  const SampleRef ref{.handle = SampleHandle("s")};
  ASSERT_OK_AND_ASSIGN(const SampleState state, store_->Stat("run", kRollout, ref));
  EXPECT_EQ(state.sample, "s");
  const std::vector<RowRange> rows{{0, 3}};
  EXPECT_OK(store_->Snapshot("run", kRollout, ref, rows));
  EXPECT_THAT(store_->Stat("run", Producer::kTrainer, ref), Fails(kNotFound, Reason::kNoSample));
  EXPECT_THAT(store_->Stat("run", kRollout, {.handle = 12}), Fails(kNotFound, Reason::kNoSample));
  const std::vector<SampleRef> refs{ref};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult released, store_->Release("run", kRollout, refs));
  EXPECT_EQ(released.samples, 1);
}

TEST_P(StoreConformance, SamplesAreLookedUpTogetherAsOneByOne) {
  Remake(int64_t{1} << 30, [](absl::string_view id) { return id == "x" || id == "y" ? 5 : SampleHandle(id); });
  std::vector<SampleRef> refs{{.sample = "y"}, {.handle = 5}, {.handle = 12}, {.sample = "none"}};
  Fill("x", 20);
  for (int i = 0; i < 10; ++i) {
    const std::string sample = absl::StrCat("s", i);
    ASSERT_OK(Append({.sample = sample, .rows = {0, 10 + i}, .group = i}));
    refs.push_back(i % 2 == 0 ? SampleRef{.sample = sample} : SampleRef{.handle = SampleHandle(sample)});
  }
  size_t next = 0;
  const auto take = [&](const SampleRef& ref, const absl::StatusOr<SampleState>& state) {
    const SampleRef& asked = refs.at(next++);
    EXPECT_EQ(ref.sample, asked.sample);
    EXPECT_EQ(ref.handle, asked.handle);
    const absl::StatusOr<SampleState> alone = store_->Stat("run", kRollout, asked);
    EXPECT_EQ(state.status().code(), alone.status().code());
    if (state.ok() && alone.ok()) {
      EXPECT_EQ(Describe(*state), Describe(*alone));
    }
    if (next == 9) return absl::CancelledError("enough");
    return absl::OkStatus();
  };
  EXPECT_EQ(store_->StatEach("run", kRollout, refs, take), absl::CancelledError("enough"));
  EXPECT_EQ(next, 9u);
  refs.erase(refs.begin(), refs.begin() + 9);
  next = 0;
  EXPECT_OK(store_->StatEach("run", kRollout, refs, take));
  EXPECT_EQ(next, refs.size());
  const auto no_run = [&](const SampleRef&, const absl::StatusOr<SampleState>& state) { return state.status(); };
  EXPECT_THAT(store_->StatEach("none", kRollout, refs, no_run), Fails(kNotFound, Reason::kNoRun));
}

TEST_P(StoreConformance, TwoIdsOfOneHandleAreRejected) {
  Remake(int64_t{1} << 30, [](absl::string_view id) { return id == "x" || id == "y" ? 5 : SampleHandle(id); });
  // The first append of "y" is rejected, so "y" does not exist and its handle stays free.
  Rejected({.sample = "y", .rows = {5, 10}}, absl::StatusCode::kFailedPrecondition, Reason::kGap);
  Fill("x", 20);
  const ErrorDetail detail =
      Rejected({.sample = "y", .rows = {0, 10}}, absl::StatusCode::kAlreadyExists, Reason::kHandleCollision);
  EXPECT_EQ(detail.sample, "y");
  Rejected({.sample = "y", .producer = Producer::kTrainer, .rows = {0, 10}}, absl::StatusCode::kAlreadyExists,
           Reason::kHandleCollision);
  EXPECT_FALSE(Exists("y"));
  EXPECT_OK(Append({.sample = "x", .producer = Producer::kTrainer, .rows = {0, 10}}));
  const std::vector<SampleRef> refs{{.sample = "y"}, {.sample = "x"}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult released, store_->Release("run", std::nullopt, refs));
  EXPECT_EQ(released.samples, 2);
  Fill("y", 10);
}

TEST_P(StoreConformance, SnapshotsAreClipped) {
  ASSERT_OK(Append({.rows = {0, 100}, .unrecorded = {{40, 50}}}));
  const auto ranges_of = [&](const std::vector<RowRange>& asked) {
    absl::StatusOr<SampleSnapshot> snapshot = store_->Snapshot("run", kRollout, {.sample = "s"}, asked);
    EXPECT_OK(snapshot);
    std::vector<RowRange> rows;
    for (const StoredRows& stored : snapshot->rows) {
      EXPECT_TRUE(stored.block->rows().contains(stored.rows));
      AppendMerged(rows, stored.rows);
    }
    return rows;
  };
  EXPECT_THAT(ranges_of({}), IsEmpty());
  EXPECT_THAT(ranges_of({{3, 4}}), ElementsAre(RowRange{3, 4}));
  EXPECT_THAT(ranges_of({{30, 45}, {48, 70}, {99, 200}}),
              ElementsAre(RowRange{30, 40}, RowRange{50, 70}, RowRange{99, 100}));
  EXPECT_THAT(ranges_of({{40, 50}}), IsEmpty());
  EXPECT_THAT(ranges_of({{100, 120}}), IsEmpty());
}

TEST_P(StoreConformance, ASnapshotOutlivesItsSample) {
  Fill("s", 100);
  const std::vector<RowRange> all{{0, 100}};
  ASSERT_OK_AND_ASSIGN(const SampleSnapshot snapshot, store_->Snapshot("run", kRollout, {.sample = "s"}, all));
  ASSERT_OK(store_->DropRun("run"));
  ASSERT_OK_AND_ASSIGN(const Rows rows, RowsOf(TestGeometry(), snapshot));
  EXPECT_EQ(rows, ExpectedRows(TestGeometry(), {}, 100));
}

TEST_P(StoreConformance, ListsGoByIdAndPage) {
  std::vector<std::string> all;
  for (int i = 0; i < 50; ++i) {
    const std::string id = absl::StrCat("sample-", i / 10, i % 10);
    all.push_back(id);
    ASSERT_OK(Append({.sample = id, .rows = {0, 1}, .group = i % 3}));
  }
  ASSERT_OK(Append({.sample = "sample-trainer", .producer = Producer::kTrainer, .rows = {0, 1}}));
  for (size_t size : {1, 7, 25, 49, 50, 51}) {
    std::vector<std::string> listed;
    std::string token;
    size_t pages = 0;
    do {
      ASSERT_OK_AND_ASSIGN(const ListPage page, store_->List("run", kRollout, std::nullopt, size, token));
      for (const std::string& name : Names(page)) listed.push_back(name);
      token = page.next_token;
      ++pages;
    } while (!token.empty());
    EXPECT_EQ(listed, all) << size;
    EXPECT_EQ(pages, (50 + size - 1) / size);
  }
  ASSERT_OK_AND_ASSIGN(const ListPage group, store_->List("run", kRollout, GroupRange{2, 3}, 1000, ""));
  EXPECT_EQ(group.samples.size(), 16u);
  ASSERT_OK_AND_ASSIGN(const ListPage none, store_->List("run", kRollout, GroupRange{2, 2}, 1000, ""));
  EXPECT_THAT(none.samples, IsEmpty());
  EXPECT_THAT(store_->List("none", kRollout, std::nullopt, 1000, ""), Fails(kNotFound, Reason::kNoRun));
}

TEST_P(StoreConformance, ReleaseSkipsWhatItDoesNotKnow) {
  Fill("a", 50);
  Fill("b", 50);
  ASSERT_OK(Append({.sample = "a", .producer = Producer::kTrainer, .rows = {0, 5}}));
  const std::vector<SampleRef> refs{{.sample = "a"}, {.sample = "none"}, {.sample = "a"}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult released, store_->Release("run", kRollout, refs));
  EXPECT_EQ(released.samples, 1);
  EXPECT_FALSE(Exists("a"));
  EXPECT_TRUE(Exists("a", Producer::kTrainer));
  EXPECT_TRUE(Exists("b"));
  ASSERT_OK_AND_ASSIGN(const ReleaseResult again, store_->Release("run", kRollout, refs));
  EXPECT_EQ(again.samples, 0);
  EXPECT_EQ(again.bytes, 0);
  Fill("a", 10);  // A released id may be used again.
  EXPECT_EQ(Stat("a").revision, 0);
}

TEST_P(StoreConformance, ReleaseByGroup) {
  for (int i = 0; i < 30; ++i) {
    for (Producer producer : {kRollout, Producer::kTrainer}) {
      ASSERT_OK(Append({.sample = absl::StrCat("s", i), .producer = producer, .rows = {0, 1}, .group = i}));
    }
  }
  ASSERT_OK_AND_ASSIGN(const ReleaseResult rollout, store_->ReleaseGroups("run", kRollout, {10, 15}));
  EXPECT_EQ(rollout.samples, 5);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult both, store_->ReleaseGroups("run", std::nullopt, {10, 20}));
  EXPECT_EQ(both.samples, 15);
  EXPECT_EQ(store_->GetTotals().samples, 40);
  EXPECT_FALSE(Exists("s10", Producer::kTrainer));
  EXPECT_TRUE(Exists("s20"));
}

TEST_P(StoreConformance, IdleSamplesExpire) {
  ReopenRun({.ttl = hours(10), .block_rows = kWindow});
  for (const char* sample : {"idle", "appended", "sealed", "truncated", "read", "listed"}) Fill(sample, 5);
  clock_.Advance(hours(6));
  EXPECT_EQ(store_->Sweep(100), 0);
  ASSERT_OK(Append({.sample = "appended", .rows = {5, 6}}));
  ASSERT_OK(store_->Seal("run", kRollout, "sealed", 6, 0));
  ASSERT_OK(store_->Truncate("run", kRollout, "truncated", 2, std::nullopt));
  Read("read");
  EXPECT_EQ(Stat("listed").idle_ms, 6 * 3600 * 1000);
  EXPECT_EQ(Stat("read").idle_ms, 0);
  EXPECT_OK(store_->List("run", kRollout, std::nullopt, 1000, ""));
  clock_.Advance(hours(5));
  EXPECT_EQ(store_->Sweep(100), 2);
  EXPECT_FALSE(Exists("idle"));
  EXPECT_FALSE(Exists("listed"));
  clock_.Advance(hours(4));
  EXPECT_EQ(store_->Sweep(100), 0);
  clock_.Advance(hours(2));
  EXPECT_EQ(store_->Sweep(100), 4);
  EXPECT_EQ(store_->GetTotals().samples, 0);
}

TEST_P(StoreConformance, SweepTakesNoMoreThanAsked) {
  ReopenRun({.ttl = hours(1)});
  OpenRun("other", {.ttl = hours(1)});
  for (int i = 0; i < 40; ++i) {
    const std::string run = i % 2 == 0 ? "run" : "other";
    ASSERT_OK(Append({.run = run, .sample = absl::StrCat("s", i), .rows = {0, 1}}));
  }
  clock_.Advance(hours(2));
  EXPECT_EQ(store_->Sweep(0), 0);
  for (int left = 40; left > 0; left -= 8) EXPECT_EQ(store_->Sweep(8), 8);
  EXPECT_EQ(store_->Sweep(8), 0);
}

TEST_P(StoreConformance, AWatchTellsOfTheNextChangeOnce) {
  std::atomic<int> calls{0};
  const auto watch = [&](const SampleRef& ref) { return *store_->WatchSample("run", kRollout, ref, [&] { ++calls; }); };
  const std::vector<SampleRef> refs{{.sample = "s"}};
  const std::vector<std::function<void()>> changes = {
      [&] {
        EXPECT_OK(Append({.rows = {0, 10}}));
      },  // For a sample that does not exist yet.
      [&] {
        EXPECT_OK(Append({.rows = {10, 12}}));
      },
      [&] { EXPECT_OK(store_->Seal("run", kRollout, "s", 13, 0)); },
      [&] { EXPECT_OK(store_->Truncate("run", kRollout, "s", 5, std::nullopt)); },
      [&] {
        EXPECT_OK(Append({.rows = {0, 3}, .revision = 1, .restart_nonce = 4}));
      },
      [&] { EXPECT_OK(store_->Release("run", std::nullopt, refs)); },
      [&] { EXPECT_OK(store_->DropRun("run")); },
  };
  HearOthers("s");
  for (const auto& change : changes) {
    const auto by_id = watch({.sample = "s"}), by_handle = watch({.handle = SampleHandle("s")});
    calls = 0;
    if (Exists("s")) Read("s");
    EXPECT_EQ(calls, 0);
    change();
    Await([&] { return calls == 2; });
    EXPECT_EQ(calls, 2);
  }
  EXPECT_THAT(store_->WatchSample("run", kRollout, {.sample = "s"}, [] {}), Fails(kNotFound, Reason::kNoRun));
}

TEST_P(StoreConformance, ACallbackMayUseTheStore) {
  Fill("s", 10);
  HearOthers("s");
  std::atomic<int> calls{0};
  const auto watch = *store_->WatchSample("run", kRollout, {.sample = "s"}, [&] {
    EXPECT_FALSE(Exists("s"));
    Fill("s", 5);
    ++calls;
  });
  const std::vector<SampleRef> refs{{.sample = "s"}};
  ASSERT_OK(store_->Release("run", std::nullopt, refs));
  Await([&] { return calls == 1; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Stat("s").committed_rows, 5);
}

TEST_P(StoreConformance, AWatchIsSilentWithoutAChangeAndAfterItsEnd) {
  Fill("s", 10);
  HearOthers("s");
  std::atomic<int> calls{0};
  auto watch = *store_->WatchSample("run", kRollout, {.sample = "s"}, [&] { ++calls; });
  Fill("t", 10);
  ASSERT_OK(Append({.producer = Producer::kTrainer, .rows = {0, 10}}));
  ASSERT_OK(Append({.rows = {0, 10}}));
  EXPECT_FALSE(Append({.rows = {30, 40}}).ok());
  EXPECT_EQ(calls, 0);
  watch.reset();
  ASSERT_OK(Append({.rows = {10, 20}}));
  EXPECT_EQ(calls, 0);
  HearOthers("s");
  // A watch may outlive its run and be ended by another one's callback.
  watch = *store_->WatchSample("run", kRollout, {.sample = "s"}, [&] { ++calls; });
  std::atomic<bool> ended{false};
  auto second = *store_->WatchSample("run", kRollout, {.sample = "t"}, [&] {
    watch.reset();
    ended = true;
  });
  ASSERT_OK(Append({.sample = "t", .rows = {10, 20}}));
  Await([&] { return ended.load(); });
  EXPECT_TRUE(ended);
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace routing_replay::testing
