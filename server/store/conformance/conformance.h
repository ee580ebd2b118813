// The suite that every store passes. A store's own test names its factory:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, ::testing::Values(StoreFactory{"memory", make}), FactoryName);
//
// and links store_conformance.
#ifndef SERVER_STORE_CONFORMANCE_CONFORMANCE_H_
#define SERVER_STORE_CONFORMANCE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/wire/clock.h"
#include "server/admission/byte_budget.h"
#include "server/store/conformance/trajectory.h"
#include "server/store/store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

struct StoreFactory {
  std::string name;
  // An empty store on this budget and clock, whose handles come from `handle_of`.
  std::function<std::unique_ptr<Store>(ByteBudget& budget, const Clock& clock,
                                       std::function<int64_t(absl::string_view)> handle_of)>
      make;
  // Whether committed rows are charged to the budget. Not those of a store whose rows lie outside of this process and
  // belong to several: there each byte of them would be charged to every server, or to one by chance.
  bool rows_in_budget = true;
  // Whether a fork shares its parent's blocks. A store where that cannot be made safe copies them (design.md section
  // 4).
  bool forks_share_blocks = true;
  // Whether it is one server. Of several, asked by turns, each hears soon of what another did, but not before the other
  // answers.
  bool one_server = true;
  // Whether a watch hears of everything from its beginning. Where others may change a sample, it takes a moment, after
  // which the watch is called in case that it missed something.
  bool watches_hear_at_once = true;
  // With which seeds random operations are played, from which to before which. Stores that differ in how they are
  // reached alone share them.
  std::pair<uint32_t, uint32_t> model_seeds = {0, 24};
  // Why there is no such store here; empty where there is.
  std::string missing;
};

inline std::string FactoryName(const ::testing::TestParamInfo<StoreFactory>& info) { return info.param.name; }

// Layers of different E, K and element width, and a dense one.
const Geometry& TestGeometry();

// Everything of a sample that a rejected call must leave alone.
struct SampleLook {
  std::string state;
  Rows rows;
  friend bool operator==(const SampleLook&, const SampleLook&) = default;
};
// All fields but idle_ms and stored_bytes, for comparison and for people.
std::string Describe(const SampleState& state);

class StoreConformance : public ::testing::TestWithParam<StoreFactory> {
 protected:
  StoreConformance() {
    if (GetParam().missing.empty()) Remake();
  }
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
  }

  // A new, empty store with a run "run" of small windows.
  void Remake(int64_t budget = int64_t{1} << 30, std::function<int64_t(absl::string_view)> handle_of = SampleHandle);
  RunInfo OpenRun(const std::string& run, RunOptions options);
  // Drops the run and makes it again with other options.
  void ReopenRun(RunOptions options);

  absl::StatusOr<AppendAck> Append(const AppendSpec& spec) { return store_->Append(MakeAppend(run_, spec)); }
  // Rows [0, rows) of the plain trajectory.
  void Fill(const std::string& sample, int64_t rows);
  SampleState Stat(const std::string& sample, Producer producer = Producer::kRollout);
  bool Exists(const std::string& sample, Producer producer = Producer::kRollout);
  Rows Read(const std::string& sample, Producer producer = Producer::kRollout);
  SampleLook Look(const std::string& sample);
  // The row ranges of the blocks that the sample's rows lie in.
  std::vector<RowRange> Blocks(const std::string& sample);
  // Sends the append, expects the rejection, and that the sample and the budget are as before. Gives the detail.
  ErrorDetail Rejected(const AppendSpec& spec, absl::StatusCode code, Reason reason);

  // Until watches of the sample hear of everything.
  void HearOthers(const std::string& sample);
  // Until the condition holds, or for long enough; at once where everything is told at once.
  static void Await(const std::function<bool()>& condition);
  // What the budget has for committed rows and what belongs to them.
  // What is taken of the budget beside what runs take.
  int64_t Used() { return budget_->used() - store_->GetTotals().run_bytes; }
  int64_t Charged(int64_t stored_bytes) const { return GetParam().rows_in_budget ? stored_bytes : 0; }

  const Geometry& geometry() const { return *run_.geometry; }

  static constexpr int32_t kWindow = 32;
  ManualClock clock_;
  std::unique_ptr<ByteBudget> budget_;
  std::unique_ptr<Store> store_;
  RunInfo run_;
};

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_CONFORMANCE_CONFORMANCE_H_
