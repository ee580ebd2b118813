// Acts as a trainer rank whose server does not exist.
#include "expect.h"
#include "routing_replay/trainer/fetch.h"

using namespace routing_replay;

namespace {

absl::Status Fetch(Client& client, const trainer::ReplayPlan& plan) {
  const auto run = client.JoinRun("grpo-42");
  if (!run.ok()) return run.status();
  return trainer::FetchSlices(**run, plan, {{.sample = "s"}}, {}).status();
}

absl::Status Inspect(Client& client) {
  const auto run = client.JoinRun("grpo-42");
  if (!run.ok()) return run.status();
  return trainer::InspectSamples(**run, {{.sample = "s"}}, {}).status();
}

}  // namespace

int main() {
  const auto client =
      Client::Connect({.endpoint = "unix:/nonexistent/routing-replay", .call_timeout = std::chrono::milliseconds(200)});
  EXPECT(client.ok());
  EXPECT(Fetch(**client, {}).code() == absl::StatusCode::kUnavailable);
  EXPECT(Inspect(**client).code() == absl::StatusCode::kUnavailable);
}
