#include "server/operations/operator_check.h"

#include <gtest/gtest.h>

namespace routing_replay {
namespace {

// The port asks for no certificate, so whoever comes there is nobody.
TEST(OperatorCheckTest, WithCertificatesAloneStrangersAreRefused) {
  const AccessControl open;
  ServerConfig config;
  config.operations_listen = "0.0.0.0:7401";
  EXPECT_TRUE(MakeOperatorCheck(config, open)("", Scope::kAdmin).ok());
  config.tls.client_ca = "ca.crt";
  EXPECT_TRUE(absl::IsUnauthenticated(MakeOperatorCheck(config, open)("", Scope::kAdmin)));
  EXPECT_TRUE(absl::IsUnauthenticated(MakeOperatorCheck(config, open)("Bearer any", Scope::kRead)));
  config.operations_listen = "127.0.0.1:7401";
  EXPECT_TRUE(MakeOperatorCheck(config, open)("", Scope::kAdmin).ok());
}

}  // namespace
}  // namespace routing_replay
