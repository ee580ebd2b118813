// Tests with a real server: login, TLS, pipelines of large values, scripts, limits of memory, settings.
#include <csignal>
#include <fstream>

#include "server/store/redis/client/redis_cluster.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeTestCertificates;
using routing_replay::testing::NoRedisReason;
using routing_replay::testing::RedisProcess;
using routing_replay::testing::ScratchDirectory;
using routing_replay::testing::TestCertificates;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Clock::Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

RedisResult ExecuteOne(RedisCluster& cluster, const RedisRequest& request, Clock::Time deadline) {
  return std::move(cluster.Execute({&request, 1}, deadline).front());
}

RedisRequest Get(const std::string& key) { return {.command = RedisCommand({"GET", key}), .key = key}; }
RedisRequest Set(const std::string& key, const std::string& value) {
  return {.command = RedisCommand({"SET", key}).AddBorrowed(value), .key = key};
}

class RedisServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoRedisReason(); !reason.empty()) GTEST_SKIP() << reason;
  }
  void Start(const std::vector<std::string>& settings = {}, const RedisEndpoint& endpoint = {}) {
    ASSERT_OK_AND_ASSIGN(server_, RedisProcess::Start(settings, endpoint));
  }
  absl::StatusOr<std::unique_ptr<RedisCluster>> Connect(const RedisEndpoint& endpoint,
                                                        const RedisClusterOptions& options = {}) {
    return RedisCluster::Connect(endpoint, options, Soon());
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  const ScratchDirectory directory_;
  std::unique_ptr<RedisProcess> server_;
};

void CheckLargePipeline(RedisCluster& cluster) {
  std::mt19937_64 random(1);
  std::vector<std::string> values;
  std::vector<RedisRequest> writes, reads;
  for (int i = 0; i < 120; ++i) {
    std::string value(i % 7 == 0 ? 1 << 20 : random() % 100000, '\0');
    for (char& c : value) c = static_cast<char>(random());
    values.push_back(std::move(value));
  }
  for (int i = 0; i < 120; ++i) {
    writes.push_back(Set(absl::StrCat("key", i), values[i]));
    reads.push_back(Get(absl::StrCat("key", i)));
  }
  for (const RedisResult& result : cluster.Execute(writes, Soon())) ASSERT_OK(result.reply);
  const auto results = cluster.Execute(reads, Soon());
  for (int i = 0; i < 120; ++i) {
    ASSERT_OK(results[i].reply);
    ASSERT_TRUE(results[i].reply->text == values[i]) << i;
  }
}

TEST_F(RedisServerTest, LargePipelines) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  EXPECT_FALSE(cluster->clustered());
  CheckLargePipeline(*cluster);
}

TEST_F(RedisServerTest, ScriptsAndTheirErrors) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  const auto call = [](const char* argument) -> RedisRequest {
    const char* script = "if ARGV[1] == 'fail' then return redis.error_reply('STALE no') end return {KEYS[1], 7}";
    return {.command = RedisCommand({"EVAL", script, "1", "k", argument}), .key = "k"};
  };
  for (int i = 0; i < 2; ++i) {
    const RedisResult result = ExecuteOne(*cluster, call("x"), Soon());
    ASSERT_OK(result.reply);
    ASSERT_EQ(result.reply->elements.size(), 2);
    EXPECT_EQ(result.reply->elements[1].integer, 7);
  }
  const RedisResult failed = ExecuteOne(*cluster, call("fail"), Soon());
  EXPECT_TRUE(absl::IsFailedPrecondition(failed.reply.status()));
  EXPECT_THAT(std::string(failed.reply.status().message()), HasSubstr("STALE"));
}

TEST_F(RedisServerTest, UsersAndPasswords) {
  ASSERT_NO_FATAL_FAILURE(Start({"--user", "default", "off", "--user", "writer", "on", ">right", "~*", "&*", "+@all",
                                 "--user", "reader", "on", ">right", "~*", "+hello", "+get", "+cluster"},
                                {.user = "writer", .password_file = WriteFile("right", "right\n")}));
  EXPECT_OK(Connect(server_->endpoint()));

  RedisEndpoint wrong = server_->endpoint();
  wrong.password_file = WriteFile("wrong", "hunter2\n");
  const absl::Status denied = Connect(wrong).status();
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(std::string(denied.message()), Not(HasSubstr("hunter2")));

  RedisEndpoint nobody = server_->endpoint();
  nobody.user = nobody.password_file = "";
  EXPECT_TRUE(absl::IsPermissionDenied(Connect(nobody).status()));

  RedisEndpoint reader = server_->endpoint();
  reader.user = "reader";
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(reader));
  EXPECT_OK(ExecuteOne(*cluster, Get("k"), Soon()).reply);
  const std::string value = "v";
  EXPECT_TRUE(absl::IsPermissionDenied(ExecuteOne(*cluster, Set("k", value), Soon()).reply.status()));
}

TEST_F(RedisServerTest, Tls) {
  ASSERT_OK_AND_ASSIGN(const TestCertificates good, MakeTestCertificates(directory_.path() + "/good", "IP:127.0.0.1"));
  ASSERT_OK_AND_ASSIGN(const TestCertificates other,
                       MakeTestCertificates(directory_.path() + "/other", "IP:127.0.0.2"));
  const RedisEndpoint endpoint{
      .tls = true, .ca_file = good.ca_file, .cert_file = good.cert_file, .key_file = good.key_file};
  ASSERT_NO_FATAL_FAILURE(
      Start({"--tls-cert-file", good.cert_file, "--tls-key-file", good.key_file, "--tls-ca-cert-file", good.ca_file},
            endpoint));
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  CheckLargePipeline(*cluster);

  RedisEndpoint stranger = server_->endpoint();
  stranger.ca_file = other.ca_file;
  EXPECT_TRUE(absl::IsUnavailable(Connect(stranger).status())) << Connect(stranger).status();
  RedisEndpoint missing = server_->endpoint();
  missing.key_file = "/nowhere";
  EXPECT_THAT(Connect(missing), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  // A file that is not filled yet must not mean the system's authorities, and half a file not some of them.
  const std::string file = directory_.path() + "/part.pem";
  std::ifstream authority(good.ca_file);
  const std::string whole((std::istreambuf_iterator<char>(authority)), {});
  for (const std::string& text : {std::string(), whole + whole.substr(0, whole.size() / 2)}) {
    std::ofstream(file) << text;
    RedisEndpoint part = server_->endpoint();
    part.ca_file = file;
    const absl::Status status = Connect(part).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("ca_file"), HasSubstr(file)));
  }
  RedisEndpoint plain = server_->endpoint();
  plain.tls = false;
  EXPECT_TRUE(absl::IsUnavailable(
      RedisCluster::Connect(plain, {}, Clock::Real().Now() + std::chrono::milliseconds(200)).status()));
}

// After 16 reads a connection lets others have their turn. TLS may then hold bytes that it has already taken from the
// socket, and poll does not report such bytes. If the client waited for poll, it would wait for bytes that are already
// here. The values have many sizes, so that some of them end at such a moment.
TEST_F(RedisServerTest, TlsReadsDoNotStandStill) {
  ASSERT_OK_AND_ASSIGN(const TestCertificates files, MakeTestCertificates(directory_.path() + "/c", "IP:127.0.0.1"));
  ASSERT_NO_FATAL_FAILURE(
      Start({"--tls-cert-file", files.cert_file, "--tls-key-file", files.key_file, "--tls-ca-cert-file", files.ca_file},
            {.tls = true, .ca_file = files.ca_file, .cert_file = files.cert_file, .key_file = files.key_file}));
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  for (int size = 200000; size < 300000; size += 499) {
    const std::string value(static_cast<size_t>(size), 'x');
    ASSERT_OK(ExecuteOne(*cluster, Set("k", value), Soon()).reply);
    const std::vector<RedisRequest> reads(3, Get("k"));
    // The deadline is shorter than the response timeout (10 s). At that timeout the client would look at the connection
    // again, which would end a standstill and so hide it.
    const auto deadline = Clock::Real().Now() + std::chrono::seconds(5);
    for (const RedisResult& result : cluster->Execute(reads, deadline)) ASSERT_OK(result.reply);
  }
}

// The server accepts connections again after others were closed.
TEST_F(RedisServerTest, AServerWithoutAFreeConnectionIsUnavailable) {
  ASSERT_NO_FATAL_FAILURE(Start({"--maxclients", "1"}));
  ASSERT_OK_AND_ASSIGN(auto first, Connect(server_->endpoint()));
  const auto deadline = Clock::Real().Now() + std::chrono::milliseconds(100);
  const absl::Status status = RedisCluster::Connect(server_->endpoint(), {}, deadline).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  first.reset();
  const auto end = Clock::Real().Now() + std::chrono::seconds(60);
  while (!Connect(server_->endpoint()).ok() && Clock::Real().Now() < end) std::this_thread::yield();
  EXPECT_LT(Clock::Real().Now(), end);
}

TEST_F(RedisServerTest, TlsNamesTheHost) {
  ASSERT_OK_AND_ASSIGN(const TestCertificates files, MakeTestCertificates(directory_.path() + "/c", "DNS:localhost"));
  RedisEndpoint endpoint{
      .tls = true, .ca_file = files.ca_file, .cert_file = files.cert_file, .key_file = files.key_file};
  const auto started = RedisProcess::Start(
      {"--tls-cert-file", files.cert_file, "--tls-key-file", files.key_file, "--tls-ca-cert-file", files.ca_file},
      endpoint, "localhost");
  ASSERT_OK(started);
  endpoint = (*started)->endpoint();
  EXPECT_OK(Connect(endpoint));
  endpoint.seeds[0].host = "127.0.0.1";
  const absl::Status status = Connect(endpoint).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(RedisServerTest, OutOfMemory) {
  ASSERT_NO_FATAL_FAILURE(Start({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"}));
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  const std::string value(1 << 20, 'x');
  std::vector<RedisRequest> requests;
  for (int i = 0; i < 8; ++i) requests.push_back(Set(absl::StrCat("key", i), value));
  const auto results = cluster->Execute(requests, Soon());
  EXPECT_OK(results.front().reply);
  EXPECT_THAT(results.back().reply, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
}

TEST_F(RedisServerTest, RestartedServerIsFoundAgain) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto cluster, Connect(server_->endpoint()));
  EXPECT_OK(ExecuteOne(*cluster, Get("k"), Soon()).reply);
  server_->Kill();
  const auto deadline = Clock::Real().Now() + std::chrono::milliseconds(50);
  EXPECT_TRUE(absl::IsUnavailable(ExecuteOne(*cluster, Get("k"), deadline).reply.status()));
  ASSERT_OK(server_->Restart());
  EXPECT_OK(ExecuteOne(*cluster, Get("k"), Soon()).reply);
}

TEST_F(RedisServerTest, StoppedServerIsTakenForLost) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_OK_AND_ASSIGN(const auto cluster,
                       Connect(server_->endpoint(), {.connect_timeout = std::chrono::milliseconds(100),
                                                     .response_timeout = std::chrono::milliseconds(100)}));
  server_->Pause();
  const auto deadline = Clock::Real().Now() + std::chrono::seconds(1);
  EXPECT_TRUE(absl::IsUnavailable(ExecuteOne(*cluster, Get("k"), deadline).reply.status()));
  server_->Signal(SIGCONT);
  EXPECT_OK(ExecuteOne(*cluster, Get("k"), Soon()).reply);
}

}  // namespace
}  // namespace routing_replay::server
