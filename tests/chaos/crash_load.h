// The load under which servers are killed, and what must hold afterwards.
#ifndef TESTS_CHAOS_CRASH_LOAD_H_
#define TESTS_CHAOS_CRASH_LOAD_H_

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "tests/chaos/crash_history.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {

// The environment's RR_CRASH_ROUNDS, or `rounds`.
int CrashRounds(int rounds);

// Writes its own samples, one after the other: appends, seals, truncates, restarts, forks and releases them.
class CrashWriter {
 public:
  CrashWriter(int number, uint64_t seed) : number_(number), random_(seed) {}

  // Runs until a call fails with UNAVAILABLE or DEADLINE_EXCEEDED: then the server is gone.
  void Write(const std::string& endpoint);
  // While `go_on` says so, which is asked after each change with its outcome. The sample of a change that failed is
  // given up. RESOURCE_EXHAUSTED leaves it as it was, at least until the server is started anew; older samples are
  // released then.
  void WriteWhile(const std::string& endpoint, const std::function<bool(const absl::Status&)>& go_on);

  const std::map<std::string, CrashHistory>& samples() const { return samples_; }

 private:
  absl::Status Step(Run& run);
  absl::Status Begin(Run& run);
  absl::Status Append(Run& run);
  absl::Status Restart(Run& run);
  absl::Status Truncate(Run& run);
  absl::Status Release(Run& run, const std::string& sample);
  // Called if a change of `sample` was rejected.
  void ExpectUntouched(Run& run, const std::string& sample);
  absl::Status MakeRoom(Run& run);

  // Appends the last rows of `next`, from row `begin` on; the source made them.
  absl::Status Put(Run& run, CrashState next, int64_t begin, AppendOptions options);
  absl::Status Ended(const absl::Status& status, bool of_fork);
  CrashHistory& now() { return samples_[current_]; }
  void NewSource() { source_ = std::make_shared<const CrashSource>(random_()); }
  bool OneIn(int64_t times) { return Below(times) == 0; }
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }

  const int number_;
  std::mt19937_64 random_;
  std::shared_ptr<const CrashSource> source_;  // Makes the next rows.
  std::string current_;                        // Empty: the next step begins a sample.
  std::string parent_;                         // A sample that may be forked.
  std::map<std::string, CrashHistory> samples_;
};

// Checks that everything acknowledged is there, bit for bit, and that a change without acknowledgement is there
// completely or not at all.
void ExpectNothingLost(Run& run, const std::string& sample, const CrashHistory& history);
// Checks the rows and tokens of `expected`, and its seal.
void ExpectState(Run& run, const SampleState& state, const CrashState& expected);
// The committed rows.
absl::StatusOr<LayerRows> ReadLayers(Run& run, const SampleState& state);

}  // namespace routing_replay::testing

#endif  // TESTS_CHAOS_CRASH_LOAD_H_
