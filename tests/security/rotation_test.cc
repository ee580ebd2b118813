// Certificates and tokens change under load. No call may fail if its client keeps its files up to date, and withdrawn
// tokens and certificates must stop working.
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "tests/security/guarded_client.h"
#include "tests/security/load.h"

namespace routing_replay::testing {
namespace {

constexpr std::chrono::seconds kPatience(20);

absl::Status AppendOnce(Run& run, Appender& appender, const std::string& sample) {
  const std::vector<uint8_t> ids = {3, 1, 2};
  const TensorDescription tensor{.dtype = DType::kU8, .shape = {3, 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  absl::Status status = appender.Append({.sample = sample, .seal_num_tokens = 4}, tensor, ids);
  status.Update(appender.Flush(kPatience));
  if (!status.ok()) return status;
  const auto read = run.ReadRows({.samples = {{.sample = sample}}}, kPatience);
  if (!read.ok()) return read.status();
  return (*read)[0].record.status == SampleStatus::kOk ? absl::OkStatus() : absl::DataLossError("not read");
}

// Clients that make calls of every kind until they are stopped: appends on a long stream, reads, calls that are not
// retried, and the calls of a new client in each round.
class Clients {
 public:
  explicit Clients(const ClientOptions& options) : client_(*Client::Connect(options)) {
    run_ = *client_->OpenRun("run", SmallGeometry());
    appender_ = run_->NewAppender();
    EXPECT_OK(AppendOnce(*run_, *appender_, "truncated"));
    loads_.push_back(
        std::make_unique<Load>([this](int i) { return AppendOnce(*run_, *appender_, absl::StrCat("long/", i)); }));
    loads_.push_back(std::make_unique<Load>(
        [this](int) { return run_->Truncate("truncated", Producer::kRollout, 0, {}).status(); }));
    loads_.push_back(std::make_unique<Load>([options](int i) {
      auto client = Client::Connect(options);
      if (!client.ok()) return client.status();
      auto run = (*client)->JoinRun("run");
      if (!run.ok()) return run.status();
      return AppendOnce(**run, *(*run)->NewAppender(), absl::StrCat("new/", i));
    }));
  }

  void Await(int more) const {
    for (const auto& load : loads_) load->Await(more);
  }
  void ExpectNoFailure() {
    for (const auto& load : loads_) EXPECT_OK(load->Stop());
  }

 private:
  std::unique_ptr<Client> client_;
  std::shared_ptr<Run> run_;
  std::unique_ptr<Appender> appender_;
  std::vector<std::unique_ptr<Load>> loads_;
};

// Opens a new connection each round and makes each kind of call without retries, to find any moment in which the server
// rejects clients.
class Newcomers {
 public:
  Newcomers(const GuardedServer& server, grpc::SslCredentialsOptions keys)
      : server_(server), keys_(std::move(keys)), load_([this](int) { return Round(); }) {}

  // New connections use `keys` from now on.
  void Show(grpc::SslCredentialsOptions keys) {
    MutexLock lock(mutex_);
    keys_ = std::move(keys);
  }
  void Await(int more) const { load_.Await(more); }
  void ExpectNoFailure() { EXPECT_OK(load_.Stop()); }

 private:
  grpc::SslCredentialsOptions keys() {
    MutexLock lock(mutex_);
    return keys_;
  }
  absl::Status Round() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    const auto stub = v1::RoutingReplay::NewStub(
        grpc::CreateCustomChannel(server_.endpoint(), grpc::SslCredentials(keys()), arguments));
    for (const AnyCall& call : EveryCall()) {
      if (call.name != "Put" && call.name != "Append" && call.name != "Read" && call.name != "Stat") continue;
      const grpc::Status status = call.make(*stub, *NewCall("known"), "run");
      if (!status.ok()) return absl::UnknownError(absl::StrCat(call.name, ": ", status.error_message()));
    }
    return absl::OkStatus();
  }

  const GuardedServer& server_;
  Mutex mutex_;
  grpc::SslCredentialsOptions keys_ ABSL_GUARDED_BY(mutex_);
  Load load_;  // The last member, because its thread uses the others.
};

grpc::Status AskOver(const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
  v1::ServerInfo info;
  return v1::RoutingReplay::NewStub(channel)->GetServerInfo(NewCall(token).get(), {}, &info);
}

TEST(RotationTest, TokensChangeUnderLoad) {
  GuardedServer server({{.token = "token-0"}});
  const ClientFiles files(server.authority().certificate(), "token-0");
  Clients clients(files.Options(server.endpoint()));
  const auto channel = server.NewChannel();
  for (int i = 0; i < 5; ++i) {
    const std::string before = absl::StrCat("token-", i), after = absl::StrCat("token-", i + 1);
    clients.Await(2);
    EXPECT_TRUE(AskOver(channel, before).ok());
    server.SetTokens({{before}, {after}});
    files.SetToken(after);
    clients.Await(2);
    server.SetTokens({{after}});
    // The token is invalid at once, even on a connection on which it was valid a moment ago.
    EXPECT_EQ(AskOver(channel, before).error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_TRUE(AskOver(channel, after).ok());
  }
  clients.ExpectNoFailure();
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Mutual TLS: both sides also get new authorities, and the files are sometimes invalid.
TEST(RotationTest, CertificatesChangeUnderLoad) {
  const TestAuthority first, second;
  const ScratchDirectory directory;
  const std::string client_ca = directory.path() + "/clients.crt";
  ReplaceFile(client_ca, first.certificate());
  GuardedServer server({{.token = "known"}}, {"--tls-client-ca", client_ca});
  ClientFiles files(server.authority().certificate(), "known");
  const TestIdentity old_identity = first.Issue("DNS:worker");
  files.SetIdentity(old_identity);
  Clients clients(files.Options(server.endpoint()));
  const auto keys = [](const std::string& authorities, const TestIdentity& identity) {
    return grpc::SslCredentialsOptions{
        .pem_root_certs = authorities, .pem_private_key = identity.key, .pem_cert_chain = identity.certificate};
  };
  Newcomers newcomers(server, keys(server.authority().certificate(), old_identity));
  const auto with = [&](const TestAuthority& server_authority, const TestIdentity& identity) {
    return AskOver(server.NewChannel(grpc::SslCredentials(keys(server_authority.certificate(), identity))), "known");
  };
  const auto await_all = [&] {
    clients.Await(1);
    newcomers.Await(2);
  };
  const auto failed_looks = [&](const TestAuthority& server_authority, const TestIdentity& identity) {
    v1::ServerInfo info;
    const auto channel = server.NewChannel(grpc::SslCredentials(keys(server_authority.certificate(), identity)));
    EXPECT_TRUE(v1::RoutingReplay::NewStub(channel)->GetServerInfo(NewCall("known").get(), {}, &info).ok());
    return (*info.mutable_counters())["routing_replay_tls_reload_failures_total"];
  };
  // Makes a file invalid, waits until the server has read it, and restores it.
  const auto spoil = [&](const std::string& path, size_t bytes, const TestAuthority& authority,
                         const TestIdentity& identity) {
    const std::string good = TextOf(path);
    const uint64_t before = failed_looks(authority, identity);
    std::ofstream(path) << good.substr(0, bytes);
    Await([&] { return failed_looks(authority, identity) > before; });
    await_all();
    std::ofstream(path) << good;
  };
  await_all();
  EXPECT_TRUE(with(server.authority(), old_identity).ok());
  spoil(server.path("server.crt"), 0, server.authority(), old_identity);
  spoil(client_ca, 300, server.authority(), old_identity);
  // Each side first trusts both authorities, then presents the new certificate, then trusts only the new authority.
  const TestIdentity new_identity = second.Issue("DNS:worker");
  ReplaceFile(client_ca, first.certificate() + second.certificate());
  const std::string both = server.authority().certificate() + second.certificate();
  files.SetAuthorities(both);
  newcomers.Show(keys(both, old_identity));
  Await([&] { return with(server.authority(), new_identity).ok(); });
  files.SetIdentity(new_identity);
  newcomers.Show(keys(both, new_identity));
  newcomers.Await(2);  // The current round has ended.
  server.SetIdentity(second.Issue(kLocalNames));
  Await([&] { return with(second, new_identity).ok(); });
  spoil(server.path("server.key"), 100, second, new_identity);
  await_all();
  files.SetAuthorities(second.certificate());
  newcomers.Show(keys(second.certificate(), new_identity));
  ReplaceFile(client_ca, second.certificate());
  Await([&] { return !with(second, old_identity).ok(); });
  clients.Await(2);
  newcomers.Await(2);
  EXPECT_TRUE(with(second, new_identity).ok());
  EXPECT_FALSE(with(server.authority(), new_identity).ok());
  clients.ExpectNoFailure();
  newcomers.ExpectNoFailure();
}

}  // namespace
}  // namespace routing_replay::testing
