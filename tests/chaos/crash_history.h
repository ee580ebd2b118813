// One writer's history of a sample: each state that it requested, and whether the last one was acknowledged. A state
// consists of rows and tokens in order, and the revision, so rows of an earlier attempt are detected in the place of
// rows of a later one.
#ifndef TESTS_CHAOS_CRASH_HISTORY_H_
#define TESTS_CHAOS_CRASH_HISTORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"
#include "tests/support/random_routes.h"

namespace routing_replay::testing {

inline constexpr int64_t kCrashRows = 700;  // The most rows of a sample.

inline Geometry CrashGeometry() { return Geometry::Uniform(6, 160, 8); }

using LayerRows = std::vector<std::vector<uint16_t>>;  // By MoE ordinal.

// The rows and tokens that an engine would produce, for the longest sample.
struct CrashSource {
  explicit CrashSource(uint64_t seed)
      : routes(MakeRandomRoutes(CrashGeometry(), kCrashRows, seed)), tokens(MakeTokens(kCrashRows, seed)) {}
  RandomRoutes routes;
  std::vector<uint32_t> tokens;
};

// A cheap value to copy.
class CrashState {
 public:
  int64_t revision = 0;
  bool sealed = false;
  bool token_check = true;  // Whether the server must have the token check at the end.

  int64_t rows() const { return parts_.empty() ? 0 : parts_.back().rows.end; }
  // Rows [0, rows), unsealed; `rows` at least 1.
  CrashState First(int64_t rows) const;
  // Appends rows up to `end`, taken from `source`.
  void Append(std::shared_ptr<const CrashSource> source, int64_t end);

  LayerRows Layers() const;
  std::vector<uint32_t> Tokens() const;
  // The token check at the end of the state.
  TokenCheck Check() const;

 private:
  struct Part {
    std::shared_ptr<const CrashSource> source;
    RowRange rows;
  };
  std::vector<Part> parts_;  // In row order, starting at row 0.
};

class CrashHistory {
 public:
  bool released = false;   // A release was requested; the sample may be gone.
  bool told_lost = false;  // A call returned DATA_LOSS.

  // The last acknowledged state; an empty one before the first.
  const CrashState& acknowledged() const { return states_[states_.size() - (pending_ ? 2 : 1)]; }
  // The last requested state.
  const CrashState& last() const { return states_.back(); }
  // Whether any state had this number of rows.
  bool Had(int64_t rows) const;

  // Requires that no state is pending. `next` is pending until it is acknowledged.
  void Ask(CrashState next);
  void Acknowledge() { pending_ = false; }

  // All states, in the order of the requests.
  absl::Span<const CrashState> states() const { return absl::MakeConstSpan(states_).subspan(1); }
  // The expected state if nothing is lost: the last acknowledged one, or the pending one if it has the rows, revision
  // and seal of `state`. Null if neither has.
  const CrashState* Kept(const SampleState& state) const;
  // "10@1 20@1 15@2": the requested states, in order.
  std::string Text() const;
  // The state with these rows and this revision or a later one; null if there is none. All states have different rows.
  const CrashState* Find(const LayerRows& layers, int64_t revision) const;

 private:
  std::vector<CrashState> states_ = std::vector<CrashState>(1);
  bool pending_ = false;
};

}  // namespace routing_replay::testing

#endif  // TESTS_CHAOS_CRASH_HISTORY_H_
