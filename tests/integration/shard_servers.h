// The servers of a sharded run, and their clients.
#ifndef TESTS_INTEGRATION_SHARD_SERVERS_H_
#define TESTS_INTEGRATION_SHARD_SERVERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/client.h"
#include "server/server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

inline std::unique_ptr<Client> ConnectTo(const std::string& endpoint) {
  auto client = Client::Connect({.endpoint = endpoint});
  EXPECT_OK(client);
  return *std::move(client);
}

// Starts several independent servers in this process.
struct Servers {
  explicit Servers(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ServerConfig config;
      config.listen = {"127.0.0.1:0"};
      auto server = Server::Start(std::move(config));
      EXPECT_OK(server);
      servers.push_back(*std::move(server));
      endpoints.push_back(servers.back()->advertised());
    }
  }
  std::string endpoint() const { return absl::StrCat("shard:", absl::StrJoin(endpoints, ",")); }

  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> endpoints;
};

}  // namespace routing_replay::testing

#endif  // TESTS_INTEGRATION_SHARD_SERVERS_H_
