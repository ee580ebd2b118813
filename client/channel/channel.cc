#include "client/channel/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/channel/channel_options.h"

namespace routing_replay::client {

namespace {

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const ChannelKeys& keys) {
  if (!keys.encrypted) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(
      {.pem_root_certs = keys.root_certificates, .pem_private_key = keys.key, .pem_cert_chain = keys.certificate});
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, const ChannelKeys& keys, bool use_http_proxy) {
  grpc::ChannelArguments arguments;
  for (const ChannelOption& option : ChannelOptions(use_http_proxy)) arguments.SetInt(option.name, option.value);
  if (target.round_robin) arguments.SetString(kPolicyOption, kRoundRobin);
  if (!keys.server_name.empty()) arguments.SetString(kServerNameOption, keys.server_name);
  return grpc::CreateCustomChannel(target.target, CredentialsOf(keys), arguments);
}

}  // namespace routing_replay::client
