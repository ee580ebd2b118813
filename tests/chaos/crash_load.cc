#include "tests/chaos/crash_load.h"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kMostRows = 150;  // The most rows of an append.
constexpr int kReleasedAtOnce = 8;
constexpr std::chrono::milliseconds kRest(5);  // The pause before it tries again after RESOURCE_EXHAUSTED.

}  // namespace

int CrashRounds(int rounds) {
  const char* said = getenv("RR_CRASH_ROUNDS");
  return said == nullptr ? rounds : atoi(said);
}

void CrashWriter::Write(const std::string& endpoint) {
  WriteWhile(endpoint, [](const absl::Status& outcome) { return outcome.ok(); });
}

void CrashWriter::WriteWhile(const std::string& endpoint, const std::function<bool(const absl::Status&)>& go_on) {
  // A short timeout, so that it soon notices that the server is gone.
  auto client = Client::Connect({.endpoint = endpoint, .call_timeout = std::chrono::seconds(1)});
  if (!client.ok()) return;
  auto run = (*client)->OpenRun("crash", CrashGeometry());
  if (!run.ok()) return;
  for (absl::Status status; go_on(status);) {
    status = Step(**run);
    if (status.ok()) continue;
    const std::string given_up = std::exchange(current_, "");
    if (!absl::IsResourceExhausted(status)) continue;
    ExpectUntouched(**run, given_up);
    MakeRoom(**run).IgnoreError();  // If this fails, the next step fails too.
    std::this_thread::sleep_for(kRest);
  }
}

absl::Status CrashWriter::Step(Run& run) {
  if (current_.empty()) return Begin(run);
  const CrashState& state = now().acknowledged();
  if (!state.sealed) {
    if (OneIn(16)) return Truncate(run);
    return OneIn(24) ? Restart(run) : Append(run);
  }
  if (OneIn(8)) return OneIn(2) ? Truncate(run) : Restart(run);
  const std::string ended = std::exchange(current_, "");
  if (OneIn(4)) return Release(run, ended);
  parent_ = ended;
  return Begin(run);
}

absl::Status CrashWriter::Begin(Run& run) {
  current_ = absl::StrCat("w", number_, "/", samples_.size());
  NewSource();
  if (parent_.empty() || !OneIn(4)) return Append(run);
  const CrashState& parent = samples_[parent_].acknowledged();
  AppendOptions options{.prefix_sample = parent_,
                        .prefix_rows = 1 + Below(std::min(parent.rows(), kCrashRows - 1)),
                        .prefix_revision = parent.revision};
  CrashState next = parent.First(options.prefix_rows);
  next.revision = 0;
  next.Append(source_, options.prefix_rows + 1 + Below(std::min(kCrashRows - options.prefix_rows, kMostRows)));
  next.sealed = next.rows() == kCrashRows;
  const std::string forked = std::exchange(parent_, "");
  if (absl::Status status = Put(run, std::move(next), options.prefix_rows, options); !status.ok()) return status;
  // Releasing the parent must not affect the child's rows.
  return OneIn(2) ? Release(run, forked) : absl::OkStatus();
}

absl::Status CrashWriter::Append(Run& run) {
  CrashState next = now().acknowledged();
  const int64_t begin = next.rows();
  next.Append(source_, begin + 1 + Below(std::min(kCrashRows - begin, kMostRows)));
  next.sealed = next.rows() == kCrashRows || OneIn(8);
  const int64_t revision = next.revision;
  return Put(run, std::move(next), begin, {.revision = revision});
}

absl::Status CrashWriter::Restart(Run& run) {
  const int64_t revision = now().acknowledged().revision;
  NewSource();
  CrashState next;
  next.revision = revision + 1;
  next.Append(source_, 1 + Below(kMostRows));
  return Put(run, std::move(next), 0, {.revision = revision, .restart_nonce = random_() | 1});
}

absl::Status CrashWriter::Truncate(Run& run) {
  const CrashState& before = now().acknowledged();
  const int64_t rows = 1 + Below(before.rows());
  if (now().Had(rows)) return before.sealed ? absl::OkStatus() : Append(run);  // States must differ in their rows.
  CrashState next = before.First(rows);
  next.revision = before.revision + 1;
  next.token_check = false;
  NewSource();
  now().Ask(std::move(next));
  return Ended(run.Truncate(current_, Producer::kRollout, rows, now().last().revision - 1).status(), false);
}

absl::Status CrashWriter::Release(Run& run, const std::string& sample) {
  samples_[sample].released = true;
  return run.Release(std::vector<std::string>{sample}).status();
}

void CrashWriter::ExpectUntouched(Run& run, const std::string& sample) {
  if (sample.empty()) return;
  const CrashState& before = samples_[sample].acknowledged();
  const auto state = run.Stat(sample);
  if (absl::IsNotFound(state.status())) {
    EXPECT_EQ(before.rows(), 0) << sample;
  } else if (state.ok()) {
    EXPECT_EQ(state->committed_rows, before.rows()) << sample;
    EXPECT_EQ(state->revision, before.revision) << sample;
    EXPECT_EQ(state->sealed(), before.sealed) << sample;
  }
}

absl::Status CrashWriter::MakeRoom(Run& run) {
  std::vector<std::string> old;
  for (auto& [sample, history] : samples_) {
    if (history.released || old.size() == kReleasedAtOnce) continue;
    history.released = true;
    old.push_back(sample);
  }
  parent_.clear();
  return run.Release(old).status();
}

absl::Status CrashWriter::Put(Run& run, CrashState next, int64_t begin, AppendOptions options) {
  options.sample = current_;
  const std::vector<uint32_t> tokens = next.Tokens();
  options.token_ids = tokens;
  if (next.sealed) options.seal_num_tokens = next.rows() + 1;
  const RowRange rows{begin, next.rows()};
  now().Ask(std::move(next));
  const absl::StatusOr<AppendOutcome> outcome = PutRows(run, source_->routes, rows, options);
  if (outcome.ok()) {
    EXPECT_EQ(outcome->conflicting_rows, 0);
    EXPECT_EQ(outcome->revision, now().last().revision);
  }
  return Ended(outcome.status(), !options.prefix_sample.empty());
}

absl::Status CrashWriter::Ended(const absl::Status& status, bool of_fork) {
  if (status.ok()) {
    now().Acknowledge();
  } else if (absl::IsResourceExhausted(status)) {
    return status;
  } else if (of_fork) {
    // The rows of the parent may be lost.
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsDataLoss(status) ||
                absl::IsFailedPrecondition(status) || absl::IsNotFound(status))
        << status;
  } else {
    now().told_lost = absl::IsDataLoss(status);
    EXPECT_TRUE(now().told_lost || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  }
  return status;
}

absl::StatusOr<LayerRows> ReadLayers(Run& run, const SampleState& state) {
  const SampleRead asked{.sample = state.sample, .rows = {{0, state.committed_rows}}};
  auto read = run.ReadRows({.samples = {asked}}, kCallTimeout);
  if (!read.ok()) return read.status();
  SampleRows& rows = (*read)[0];
  if (rows.record.status != SampleStatus::kOk) return absl::InternalError(rows.record.message);
  return LayerRows(rows.layers.begin(), rows.layers.end());
}

void ExpectState(Run& run, const SampleState& state, const CrashState& expected) {
  ASSERT_EQ(state.committed_rows, expected.rows());
  EXPECT_EQ(state.num_tokens, expected.sealed ? std::optional(expected.rows() + 1) : std::nullopt);
  if (state.token_check || expected.token_check) {
    EXPECT_EQ(state.token_check, expected.Check());
  }
  ASSERT_OK_AND_ASSIGN(const LayerRows layers, ReadLayers(run, state));
  EXPECT_EQ(layers, expected.Layers());
}

void ExpectNothingLost(Run& run, const std::string& sample, const CrashHistory& history) {
  SCOPED_TRACE(absl::StrCat(sample, " with ", history.acknowledged().rows(), " acknowledged rows at revision ",
                            history.acknowledged().revision, " and ", history.last().rows(), " at ",
                            history.last().revision, " asked for"));
  EXPECT_FALSE(history.told_lost);
  const auto state = run.Stat(sample);
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound) << state.status();
    EXPECT_TRUE(history.released || history.acknowledged().rows() == 0);
    return;
  }
  const CrashState* kept = history.Kept(*state);
  ASSERT_NE(kept, nullptr) << state->committed_rows << " rows at revision " << state->revision;
  ExpectState(run, *state, *kept);
}

}  // namespace routing_replay::testing
