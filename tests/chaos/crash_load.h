// The load under which servers are killed, and the checks afterwards.
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

// RR_CRASH_ROUNDS of the environment, or `rounds`.
int CrashRounds(int rounds);

// Writes its own samples, one after the other: appends, seals, truncates, restarts, forks and releases them.
class CrashWriter {
 public:
  CrashWriter(int number, uint64_t seed) : number_(number), random_(seed) {}

  // Writes until a call fails, which means that the server is gone.
  void Write(const std::string& endpoint);
  // Writes while `go_on` returns true for the outcome of each change. After a failed change the writer goes on with
  // another sample. After RESOURCE_EXHAUSTED it checks that the sample is unchanged, and releases older samples.
  void WriteWhile(const std::string& endpoint, const std::function<bool(const absl::Status&)>& go_on);

  const std::map<std::string, CrashHistory>& samples() const { return samples_; }

 private:
  absl::Status Step(Run& run);
  absl::Status Begin(Run& run);
  absl::Status Append(Run& run);
  absl::Status Restart(Run& run);
  absl::Status Truncate(Run& run);
  absl::Status Release(Run& run, const std::string& sample);
  // Checks that a rejected change of `sample` had no effect.
  void ExpectUntouched(Run& run, const std::string& sample);
  absl::Status MakeRoom(Run& run);

  // Appends the rows of `next` from row `begin` on.
  absl::Status Put(Run& run, CrashState next, int64_t begin, AppendOptions options);
  absl::Status Ended(const absl::Status& status, bool of_fork);
  CrashHistory& now() { return samples_[current_]; }
  void NewSource() { source_ = std::make_shared<const CrashSource>(random_()); }
  bool OneIn(int64_t times) { return Below(times) == 0; }
  int64_t Below(int64_t end) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(end)); }

  const int number_;
  std::mt19937_64 random_;
  std::shared_ptr<const CrashSource> source_;  // Source of the next rows.
  std::string current_;                        // If empty, the next step begins a sample.
  std::string parent_;                         // A sample that the next one may be forked from.
  std::map<std::string, CrashHistory> samples_;
};

// Checks that everything acknowledged is stored bit for bit, and that an unacknowledged change is stored completely or
// not at all.
void ExpectNothingLost(Run& run, const std::string& sample, const CrashHistory& history);
// Checks the rows, tokens and seal of `expected`.
void ExpectState(Run& run, const SampleState& state, const CrashState& expected);
// Reads the committed rows.
absl::StatusOr<LayerRows> ReadLayers(Run& run, const SampleState& state);

}  // namespace routing_replay::testing

#endif  // TESTS_CHAOS_CRASH_LOAD_H_
