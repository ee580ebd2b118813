// Uses the client library with a server that does not exist, and the generated messages.
#include <string>

#include "expect.h"
#include "routing_replay/client.h"
#include "routing_replay/v1/common.pb.h"

using namespace routing_replay;

int main() {
  ClientOptions options;
  options.endpoint = "unix:/nonexistent/routing-replay";
  options.call_timeout = std::chrono::milliseconds(200);
  const auto client = Client::Connect(options);
  EXPECT(client.ok());
  const auto info = (*client)->GetServerInfo();
  EXPECT(info.status().code() == absl::StatusCode::kUnavailable);

  options.endpoint = "no such endpoint";
  EXPECT(Client::Connect(options).status().code() == absl::StatusCode::kInvalidArgument);

  v1::ErrorDetail detail;
  detail.set_layer(7);
  EXPECT(v1::ErrorDetail::descriptor()->full_name() == "routing_replay.v1.ErrorDetail");
  EXPECT(!detail.SerializeAsString().empty());
}
