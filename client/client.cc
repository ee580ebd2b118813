#include "routing_replay/client.h"

#include <utility>

#include "client/caller.h"
#include "client/channel/endpoint.h"
#include "client/channel/link.h"
#include "client/run.h"
#include "client/shard/members.h"
#include "client/shard/sharded_client.h"

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::shared_ptr<const Caller> caller) : caller_(std::move(caller)) {}

  absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                               const RunSettings& settings, std::optional<int64_t> resume_at) override {
    return OpenRunWith(caller_, MakeOpenRun(run, geometry, settings, resume_at));
  }

  absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) override {
    return OpenRunWith(caller_, MakeJoinRun(run));
  }

  absl::StatusOr<std::vector<RunSummary>> ListRuns() override { return CallListRuns(*caller_); }

  absl::StatusOr<ServerSummary> GetServerInfo() override { return CallServerInfo(*caller_); }

 private:
  const std::shared_ptr<const Caller> caller_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  auto endpoint = EndpointOrEnvironment(options.endpoint);
  if (!endpoint.ok()) return endpoint.status();
  options.endpoint = *std::move(endpoint);
  if (ShardMembers::IsShardEndpoint(options.endpoint)) return ConnectSharded(options);
  auto link = Link::Open(options.endpoint, options.use_http_proxy, options.security, options.call_timeout);
  if (!link.ok()) return link.status();
  return std::make_unique<ClientImpl>(std::make_shared<const Caller>(*std::move(link), options.call_timeout));
}

}  // namespace routing_replay
