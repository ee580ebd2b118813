// A real server with TLS and tokens, and calls to it that use only the generated classes, as an attacker would.
#ifndef TESTS_SECURITY_GUARDED_SERVER_H_
#define TESTS_SECURITY_GUARDED_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::testing {

// An entry of a token file.
struct TestToken {
  std::string token;
  std::string runs = "\"\"";  // A YAML list without brackets.
  std::string scopes = "put, read, admin";
  std::string more;  // ", KEY: VALUE".
};

// Replaces the file atomically.
void ReplaceFile(const std::string& path, const std::string& text);
std::string TokenFileText(const std::vector<TestToken>& tokens);

class GuardedServer {
 public:
  // Fails the test if the server does not start. `encrypted`: TLS even on loopback addresses.
  explicit GuardedServer(const std::vector<TestToken>& tokens, std::vector<std::string> flags = {},
                         bool encrypted = true, const std::string& program = RR_SERVER);

  using Stub = v1::RoutingReplay::Stub;
  // Opens a new connection.
  std::shared_ptr<grpc::Channel> NewChannel() const;
  std::shared_ptr<grpc::Channel> NewChannel(const std::shared_ptr<grpc::ChannelCredentials>& credentials) const;
  std::shared_ptr<grpc::ChannelCredentials> credentials() const;

  void SetTokens(const std::vector<TestToken>& tokens) const;
  void SetIdentity(const TestIdentity& identity) const;

  const TestAuthority& authority() const { return authority_; }
  const std::string& endpoint() const { return process_.endpoint; }
  pid_t pid() const { return process_.process->pid(); }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

 private:
  const bool encrypted_;
  const TestAuthority authority_;
  const ScratchDirectory directory_;
  ServerProcess process_;
};

// Waits for the condition; fails the test if it does not become true.
void Await(const std::function<bool()>& done);

// The context of a call: with a deadline and, if `token` is not empty, the token.
std::unique_ptr<grpc::ClientContext> NewCall(const std::string& token);

// Opens a run with one MoE layer, 4 experts and top-1.
grpc::Status OpenRun(GuardedServer::Stub& stub, const std::string& token, const std::string& run);
// Returns an append of rows 0 … rows - 1, all of which chose expert 1, as a tensor.
v1::AppendRequest OneAppend(const std::string& run, const std::string& sample, int rows);

// A call of the service on `run`. `name` is the name of the call's rule in CallRules(), and of its row in SECURITY.md's
// table of scopes.
struct AnyCall {
  std::string name;
  std::function<grpc::Status(GuardedServer::Stub&, grpc::ClientContext&, const std::string& run)> make;
};
// Returns one call for each rule, in the order of CallRules().
const std::vector<AnyCall>& EveryCall();

}  // namespace routing_replay::testing

#endif  // TESTS_SECURITY_GUARDED_SERVER_H_
