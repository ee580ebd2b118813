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
  // Makes an empty store with this budget and clock; `handle_of` computes its handles.
  std::function<std::unique_ptr<Store>(ByteBudget& budget, const Clock& clock,
                                       std::function<int64_t(absl::string_view)> handle_of)>
      make;
  // True if committed rows are charged to the budget. False for a store that several servers share, whose rows are
  // outside of this process.
  bool rows_in_budget = true;
  // True if a sample that opens with another sample's rows (a fork) shares that sample's blocks; false if the store
  // copies them.
  bool forks_share_blocks = true;
  // True for one server. False for several servers that are called in turn: each sees changes of the others soon, but
  // not at once.
  bool one_server = true;
  // True if a watch reports every change as soon as it exists. False for a store that several servers share: after a
  // moment a new watch hears of changes by other servers; then it is called once, in case it missed one before.
  bool watches_hear_at_once = true;
  // Seeds [first, second) of the random operations. Stores that differ only in how they are reached divide one range
  // among them, so that no seed runs twice.
  std::pair<uint32_t, uint32_t> model_seeds = {0, 24};
  // The reason why this store is not available here; empty if it is.
  std::string missing;
};

inline std::string FactoryName(const ::testing::TestParamInfo<StoreFactory>& info) { return info.param.name; }

// A geometry with a dense layer, and layers of different E, K and element width.
const Geometry& TestGeometry();

// The parts of a sample that a rejected call must not change.
struct SampleLook {
  std::string state;
  Rows rows;
  friend bool operator==(const SampleLook&, const SampleLook&) = default;
};
// All fields but idle_ms and stored_bytes, as text for comparisons and failure messages.
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
  // Appends rows [0, rows) of the default trajectory.
  void Fill(const std::string& sample, int64_t rows);
  SampleState Stat(const std::string& sample, Producer producer = Producer::kRollout);
  bool Exists(const std::string& sample, Producer producer = Producer::kRollout);
  Rows Read(const std::string& sample, Producer producer = Producer::kRollout);
  SampleLook Look(const std::string& sample);
  // The row ranges of the blocks that the sample's rows lie in.
  std::vector<RowRange> Blocks(const std::string& sample);
  // Sends the append, and expects that it is rejected and that sample and budget are unchanged. Returns the detail.
  ErrorDetail Rejected(const AppendSpec& spec, absl::StatusCode code, Reason reason);

  // Waits until watches of the sample report every change.
  void HearOthers(const std::string& sample);
  // Waits until the condition holds, with a limit. Does not wait if the store reports changes at once.
  static void Await(const std::function<bool()>& condition);
  // Bytes of the budget in use, except those of the runs' records: committed rows and their metadata.
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
