// The content of a server's log.
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/security/guarded_server.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

// In normal use the server's log contains no data of users.
TEST(LogTest, NeitherIdsNorPayloadNorTokens) {
  const ScratchDirectory directory;
  const TestAuthority clients;
  ReplaceFile(directory.path() + "/ca", clients.certificate());
  const std::string log = directory.path() + "/log", program = directory.path() + "/server";
  ReplaceFile(program, absl::StrCat("#!/bin/sh\nexec ", RR_SERVER, " \"$@\" 2>", log, "\n"));
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  {
    GuardedServer server({{.token = "very-secret"}}, {"--tls-client-ca", directory.path() + "/ca"}, true, program);
    const TestIdentity identity = clients.Issue("URI:spiffe://example.org/worker");
    const auto stub = v1::RoutingReplay::NewStub(
        server.NewChannel(grpc::SslCredentials({.pem_root_certs = server.authority().certificate(),
                                                .pem_private_key = identity.key,
                                                .pem_cert_chain = identity.certificate})));
    ASSERT_TRUE(OpenRun(*stub, "very-secret", "run-of-somebody").ok());
    v1::AppendAck ack;
    v1::AppendRequest request = OneAppend("run-of-somebody", "sample-of-somebody", 3);
    EXPECT_TRUE(stub->Put(NewCall("very-secret").get(), request, &ack).ok());
    request.set_payload("\x7f\x7f\x7f");
    EXPECT_FALSE(stub->Put(NewCall("very-secret").get(), request, &ack).ok());
    EXPECT_FALSE(stub->Put(NewCall("no-secret").get(), request, &ack).ok());
  }
  std::ifstream file(log);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, ::testing::HasSubstr("listening"));
  EXPECT_THAT(text, ::testing::HasSubstr("spiffe://example.org/worker"));
  for (const char* word : {"very-secret", "no-secret", "sample-of-somebody"}) {
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(word)));
  }
  // Only one line of the log has the name of the run: the audit entry that says who created it.
  int audits = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StrContains(line, "run-of-somebody")) continue;
    EXPECT_THAT(std::string(line), ::testing::HasSubstr(R"("event":"audit","message":"","action":"make_run")"));
    ++audits;
  }
  EXPECT_EQ(audits, 1);
}

}  // namespace
}  // namespace routing_replay::testing
