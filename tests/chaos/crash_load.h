// The load under which servers are killed, and what must hold afterwards.
#ifndef TESTS_CHAOS_CRASH_LOAD_H_
#define TESTS_CHAOS_CRASH_LOAD_H_

#include <stdlib.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {

inline constexpr int64_t kCrashRows = 700;  // Of a sample, at most.

inline Geometry CrashGeometry() { return Geometry::Uniform(6, 160, 8); }

// The environment's RR_CRASH_ROUNDS, or `rounds`.
inline int CrashRounds(int rounds) {
  const char* said = getenv("RR_CRASH_ROUNDS");
  return said == nullptr ? rounds : atoi(said);
}

// What one writer knows of a sample.
struct Known {
  uint64_t seed = 0;
  int64_t acknowledged = 0;  // Rows.
  std::set<int64_t> ends;    // Of appends that may be there: the last one may not have been acknowledged.
  bool sealed = false;       // Acknowledged.
  bool released = false;     // Asked for; then anything but wrong rows is right.
  bool told_lost = false;    // An append was answered with DATA_LOSS.

  RandomRoutes Routes() const { return MakeRandomRoutes(CrashGeometry(), kCrashRows, seed); }
};

// Writes samples of its own.
class CrashWriter {
 public:
  CrashWriter(int number, uint64_t seed) : number_(number), random_(seed) {}

  // Until a call fails with UNAVAILABLE or DEADLINE_EXCEEDED: the server is gone.
  void Write(const std::string& endpoint) {
    WriteWhile(endpoint, [](const absl::Status& failed) { return failed.ok(); });
  }
  // While `go_on` says so, which is asked after each append with its outcome. The sample of an append that failed is
  // given up.
  template <typename GoOn>
  void WriteWhile(const std::string& endpoint, const GoOn& go_on) {
    // It is not to wait long for a server that does not come back.
    auto client = Client::Connect({.endpoint = endpoint, .call_timeout = std::chrono::seconds(1)});
    if (!client.ok()) return;
    auto run = (*client)->OpenRun("crash", CrashGeometry());
    if (!run.ok()) return;
    for (absl::Status status; go_on(status);) {
      status = Step(**run);
      if (!status.ok()) current_.clear();
    }
  }
  const std::map<std::string, Known>& samples() const { return samples_; }

 private:
  absl::Status Step(Run& run) {
    if (current_.empty() || samples_[current_].sealed) {
      current_ = absl::StrCat("w", number_, "/", samples_.size());
      samples_[current_].seed = random_();
    }
    Known& known = samples_[current_];
    const int64_t left = kCrashRows - known.acknowledged;
    const int64_t rows = std::min<int64_t>(left, 1 + static_cast<int64_t>(random_() % 150));
    const RowRange range = RowRange::OfSize(known.acknowledged, rows);
    const bool seal = range.end == kCrashRows || random_() % 8 == 0;
    AppendOptions options{.sample = current_};
    if (seal) options.seal_num_tokens = range.end + 1;
    known.ends.insert(range.end);
    const auto outcome = PutRows(run, known.Routes(), range, options);
    if (!outcome.ok()) return Failed(known, outcome.status());
    EXPECT_EQ(outcome->conflicting_rows, 0);
    known.acknowledged = range.end;
    known.sealed = seal;
    if (!seal || random_() % 4 != 0) return absl::OkStatus();
    known.released = true;
    return run.Release(std::vector<std::string>{current_}).status();
  }

  static absl::Status Failed(Known& known, const absl::Status& status) {
    known.told_lost = absl::IsDataLoss(status);
    EXPECT_TRUE(known.told_lost || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
    return status;
  }

  const int number_;
  std::mt19937_64 random_;
  std::string current_;
  std::map<std::string, Known> samples_;
};

// All that was acknowledged is there, bit for bit; what was not is there wholly, up to the end of an append, or not at
// all.
inline void ExpectNothingLost(Run& run, const std::string& sample, const Known& known) {
  SCOPED_TRACE(absl::StrCat(sample, " with ", known.acknowledged, " acknowledged rows"));
  EXPECT_FALSE(known.told_lost);
  const auto state = run.Stat(sample);
  if (!state.ok()) {
    EXPECT_EQ(state.status().code(), absl::StatusCode::kNotFound) << state.status();
    EXPECT_TRUE(known.released || known.acknowledged == 0);
    return;
  }
  EXPECT_EQ(state->revision, 0);
  EXPECT_GE(state->committed_rows, known.acknowledged);
  EXPECT_TRUE(known.ends.contains(state->committed_rows)) << state->committed_rows << " rows: a part of an append";
  if (known.sealed) {
    EXPECT_EQ(state->num_tokens, known.acknowledged + 1);
  }
  ExpectRows(run, sample, known.Routes(), {{0, state->committed_rows}});
}

}  // namespace routing_replay::testing

#endif  // TESTS_CHAOS_CRASH_LOAD_H_
