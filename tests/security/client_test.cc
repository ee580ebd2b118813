// Our own client against a server with TLS and tokens.
#include "routing_replay/client.h"

#include <thread>

#include "tests/security/guarded_client.h"
#include "tests/security/guarded_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

constexpr std::chrono::milliseconds kShort(500);

TEST(ClientTest, TlsAndATokenAreEnough) {
  GuardedServer server({{.token = "known"}});
  const ClientFiles files(server.authority().certificate(), "known");
  auto client = Client::Connect(files.Options(server.endpoint()));
  ASSERT_OK(client);
  auto run = (*client)->OpenRun("run", SmallGeometry());
  ASSERT_OK(run);
  ExpectRoundTrip(**run, "sample");
  EXPECT_OK((*run)->Truncate("sample", Producer::kRollout, 0, {}));  // Sent once, after a check for a server.
  EXPECT_OK((*client)->ListRuns());
}

TEST(ClientTest, TheServerIsCheckedToo) {
  GuardedServer server({{.token = "known"}});
  const TestAuthority other;
  const ClientFiles stranger(other.certificate(), "known");
  ClientOptions options = stranger.Options(server.endpoint());
  options.call_timeout = kShort;
  auto client = Client::Connect(options);
  ASSERT_OK(client);
  EXPECT_TRUE(absl::IsUnavailable((*client)->GetServerInfo().status()));
  // A certificate of the right authority for another host name.
  server.SetIdentity(server.authority().Issue("DNS:elsewhere.example.org"));
  const ClientFiles files(server.authority().certificate(), "known");
  options = files.Options(server.endpoint());
  options.security.server_name = "elsewhere.example.org";
  client = Client::Connect(options);
  ASSERT_OK(client);
  EXPECT_OK((*client)->GetServerInfo());
  options.security.server_name = "";
  options.call_timeout = kShort;
  client = Client::Connect(options);
  ASSERT_OK(client);
  EXPECT_TRUE(absl::IsUnavailable((*client)->GetServerInfo().status()));
}

TEST(ClientTest, RejectionsAreTyped) {
  GuardedServer server(std::vector<TestToken>{{.token = "reads", .scopes = "read"}, {.token = "other", .runs = "o-"}});
  const ClientFiles reads(server.authority().certificate(), "reads");
  const ClientFiles wrong(server.authority().certificate(), "wrong");
  auto client = Client::Connect(wrong.Options(server.endpoint()));
  ASSERT_OK(client);
  EXPECT_THAT((*client)->ListRuns(), Fails(absl::StatusCode::kUnauthenticated, Reason::kUnspecified));
  client = Client::Connect(reads.Options(server.endpoint()));
  ASSERT_OK(client);
  EXPECT_THAT((*client)->OpenRun("run", SmallGeometry()),
              Fails(absl::StatusCode::kPermissionDenied, Reason::kUnspecified));
  EXPECT_THAT((*client)->JoinRun("run"), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

TEST(ClientTest, ATokenDoesNotGoElsewhereInPlaintext) {
  const ClientFiles files("", "known");
  for (const char* endpoint :
       {"server.example.org:7400", "shard:10.0.0.1:7400,10.0.0.2:7400", "10.0.0.1:1,10.0.0.2:1"}) {
    EXPECT_THAT(Client::Connect(files.Options(endpoint)), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
  // The client may try the servers of the list in any order.
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Client::Connect(files.Options("127.0.0.1:1,server.example.org:7400")),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

TEST(ClientTest, ANamedAuthorityIsThere) {
  const GuardedServer server({{.token = "known"}});
  const ClientFiles files(server.authority().certificate(), "known");
  for (const std::string& text : {std::string(), server.authority().certificate().substr(0, 200)}) {
    files.SetAuthorities(text);
    EXPECT_THAT(Client::Connect(files.Options(server.endpoint())),
                Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

// One client over several members, each with its own connection.
TEST(ClientTest, ShardsAndLists) {
  const std::vector<TestToken> tokens = {{.token = "known"}};
  GuardedServer a(tokens, {}, false), b(tokens, {}, false);
  const ClientFiles files("", "known");
  for (const std::string& endpoint : {"shard:" + a.endpoint() + "," + b.endpoint(), a.endpoint() + ",127.0.0.1:1"}) {
    auto client = Client::Connect(files.Options(endpoint));
    ASSERT_OK(client);
    auto run = (*client)->OpenRun("run-" + std::to_string(endpoint.size()), SmallGeometry());
    ASSERT_OK(run);
    for (int i = 0; i < 4; ++i) ExpectRoundTrip(**run, "sample-" + std::to_string(i));
  }
}

// When its token is replaced, the server ends a waiting read, and the client continues it with the new token.
TEST(ClientTest, ATokenIsReplacedWhileAReadOfSeveralServersWaits) {
  const std::vector<TestToken> before = {{.token = "before"}}, after = {{.token = "after"}};
  GuardedServer a(before, {}, false), b(before, {}, false);
  const ClientFiles files("", "before");
  auto client = Client::Connect(files.Options("shard:" + a.endpoint() + "," + b.endpoint()));
  ASSERT_OK(client);
  auto run = (*client)->OpenRun("run", SmallGeometry());
  ASSERT_OK(run);
  const auto put = [&](const std::vector<uint8_t>& ids, const AppendOptions& options) {
    const TensorDescription tensor{
        .dtype = DType::kU8, .shape = {static_cast<int64_t>(ids.size()), 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
    return (*run)->Put(options, tensor, ids);
  };
  ASSERT_OK(put({3}, {.sample = "late"}));
  ReadRequest request{.samples = {{.sample = "late"}}, .wait = true};
  for (const char* sample : {"s1", "s2", "s3"}) {
    ExpectRoundTrip(**run, sample);
    request.samples.push_back({.sample = sample});
  }
  constexpr std::chrono::seconds kPatience(60);
  absl::StatusOr<std::vector<SampleRows>> read;
  std::thread reader([&] { read = (*run)->ReadRows(request, kPatience); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // Gives the read time to wait.
  a.SetTokens(after);
  b.SetTokens(after);
  files.SetToken("after");
  EXPECT_OK(put({1, 2}, {.sample = "late", .row_start = 1, .seal_num_tokens = 4}));
  reader.join();
  ASSERT_OK(read);
  for (const SampleRows& sample : *read) {
    EXPECT_EQ(sample.record.status, SampleStatus::kOk) << sample.record.message;
    EXPECT_THAT(sample.layers[0], ::testing::ElementsAre(3, 1, 2));
  }
}

}  // namespace
}  // namespace routing_replay::testing
