#include "server/operations/readiness.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(ReadinessTest, StartsServesWithAHealthyStoreAndDrains) {
  std::vector<std::string> verdicts;
  Readiness readiness([&](const absl::Status& verdict) { verdicts.emplace_back(verdict.message()); });
  EXPECT_EQ(readiness.Get().message(), "starting");
  readiness.Started();
  EXPECT_OK(readiness.Get());
  readiness.SetStoreHealth(absl::OkStatus());
  readiness.SetStoreHealth(absl::UnavailableError("nobody there"));
  readiness.SetStoreHealth(absl::UnavailableError("nobody there"));
  EXPECT_EQ(readiness.Get().message(), "store: UNAVAILABLE: nobody there");
  readiness.SetStoreHealth(absl::OkStatus());
  readiness.Drain();
  EXPECT_EQ(readiness.Get().message(), "draining");
  EXPECT_EQ(verdicts, (std::vector<std::string>{"", "store: UNAVAILABLE: nobody there", "", "draining"}));
}

}  // namespace
}  // namespace routing_replay::testing
