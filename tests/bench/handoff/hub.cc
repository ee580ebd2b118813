#include "tests/bench/handoff/hub.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/common/tcp_hub.h"
#include "tests/bench/handoff/digest.h"

namespace routing_replay::bench {
namespace {

class HandoffHub final : public Role {
 public:
  HandoffHub(std::unique_ptr<Role> hub, std::string digests) : hub_(std::move(hub)), digests_(std::move(digests)) {}

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    const absl::StatusOr<std::string> port = hub_->Do(command);
    if (!port.ok()) return port.status();
    return absl::StrCat(*port, digests_);
  }

 private:
  const std::unique_ptr<Role> hub_;
  const std::string digests_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeHandoffHub(const HandoffScenario& scenario) {
  std::vector<std::vector<uint8_t>> samples, ready;
  std::vector<size_t> sizes;
  for (int32_t i = 0; i < scenario.samples(); ++i) {
    samples.push_back(scenario.MakeSample(i));
    sizes.push_back(samples.back().size());
  }
  std::string digests;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    ready.push_back(scenario.ExpectedArray(PlaceOf(rank), samples));
    Sha256 digest;
    digest.Add(ready.back());
    absl::StrAppend(&digests, " ", digest.Finish());
  }
  auto hub = MakeTcpHub(sizes, std::move(ready));
  if (!hub.ok()) return hub.status();
  return std::make_unique<HandoffHub>(*std::move(hub), std::move(digests));
}

}  // namespace routing_replay::bench
