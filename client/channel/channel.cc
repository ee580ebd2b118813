#include "client/channel/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/channel/channel_options.h"

namespace routing_replay {

std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, bool use_http_proxy) {
  grpc::ChannelArguments arguments;
  for (const ChannelOption& option : ChannelOptions(use_http_proxy)) arguments.SetInt(option.name, option.value);
  if (target.round_robin) arguments.SetString(kPolicyOption, kRoundRobin);
  return grpc::CreateCustomChannel(target.target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace routing_replay
