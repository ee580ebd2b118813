#include "client/channel/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/channel/channel_options.h"

namespace routing_replay {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target, bool use_http_proxy) {
  grpc::ChannelArguments arguments;
  for (const ChannelOption& option : ChannelOptions(use_http_proxy)) arguments.SetInt(option.name, option.value);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace routing_replay
