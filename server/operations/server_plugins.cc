#include "server/operations/server_plugins.h"

#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace routing_replay::server {
namespace {

constexpr char kReflection[] = "proto_server_reflection";
constexpr char kChannelz[] = "channelz_service";

class PluginsOption final : public grpc::ServerBuilderOption {
 public:
  explicit PluginsOption(const ServerPlugins& wanted) : wanted_(wanted) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    const auto unwanted = [this](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
      return (plugin->name() == kReflection && !wanted_.reflection) ||
             (plugin->name() == kChannelz && !wanted_.channelz);
    };
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(), unwanted), plugins->end());
  }

 private:
  const ServerPlugins wanted_;
};

}  // namespace

std::unique_ptr<grpc::ServerBuilder> NewServerBuilder(const ServerPlugins& plugins) {
  // Neither is thread-safe, so all are switched on before the first builder is made, and nothing changes after.
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::channelz::experimental::InitChannelzService();
  });
  auto builder = std::make_unique<grpc::ServerBuilder>();
  // gRPC inflates a message before it looks at its length, and before any handler looks at the caller.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  if (!plugins.health) builder->SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  builder->SetOption(std::make_unique<PluginsOption>(plugins));
  return builder;
}

}  // namespace routing_replay::server
