// Servers that get SIGTERM while workers write and trainers read.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "tests/integration/fixture.h"
#include "tests/support/http_client.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {
namespace {

using std::chrono::milliseconds;

// The geometry of the standard hand-off. The samples of that hand-off are longer than those of this test.
Geometry HandoffGeometry() { return Geometry::Uniform(48, 128, 8); }
constexpr int kWorkers = 4, kRanks = 8;
constexpr int64_t kRows = 256, kStep = 32;
// Kubernetes' default.
constexpr std::chrono::seconds kGracePeriod(30);

uint64_t SeedOf(const std::string& sample) { return std::hash<std::string>()(sample); }

// Acknowledged rows by sample.
class Acknowledged {
 public:
  void Note(const AppendOutcome& outcome) {
    MutexLock lock(mutex_);
    if (!outcome.status.ok()) {
      failures_.push_back(outcome.status);
      return;
    }
    int64_t& rows = rows_[outcome.sample];
    rows = std::max(rows, outcome.committed_rows);
    if (outcome.sealed) sealed_.push_back(outcome.sample);
  }
  std::map<std::string, int64_t> rows() const {
    MutexLock lock(mutex_);
    return rows_;
  }
  std::vector<std::string> sealed() const {
    MutexLock lock(mutex_);
    return sealed_;
  }
  std::vector<absl::Status> failures() const {
    MutexLock lock(mutex_);
    return failures_;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, int64_t> rows_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> sealed_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
};

// Appends whole samples, one after the other, until `stop`, or until an append fails after its retries.
void Work(const std::string& endpoint, int worker, milliseconds append_timeout, const std::atomic<bool>& stop,
          Acknowledged& acknowledged) {
  const auto client = Client::Connect({.endpoint = endpoint, .call_timeout = kCallTimeout});
  ASSERT_OK(client);
  const auto run = (*client)->OpenRun("drain", HandoffGeometry());
  ASSERT_OK(run);
  AppenderOptions options{.append_timeout = append_timeout};
  options.on_outcome = [&](const AppendOutcome& outcome) { acknowledged.Note(outcome); };
  const auto appender = (*run)->NewAppender(options);
  for (int i = 0; !stop; ++i) {
    const std::string sample = absl::StrCat("w", worker, "/", i);
    const RandomRoutes routes = MakeRandomRoutes(HandoffGeometry(), kRows, SeedOf(sample));
    for (int64_t begin = 0; begin < kRows; begin += kStep) {
      AppendOptions append{.sample = sample, .row_start = begin};
      if (begin + kStep == kRows) append.seal_num_tokens = kRows + 1;
      appender->Append(append, Int32Tensor(HandoffGeometry(), kStep), AsBytes(routes.Tensor({begin, begin + kStep})))
          .IgnoreError();
    }
    if (!appender->Flush(kCallTimeout).ok()) return;
  }
}

// Returns the layers and rows that one of kRanks ranks reads: pipeline parallel 2, context parallel 4.
ReadRequest SliceOf(int rank, const std::string& sample) {
  ReadRequest request;
  for (int32_t layer = rank % 2 * 24; layer < rank % 2 * 24 + 24; ++layer) request.layers.push_back(layer);
  const int64_t rows = kRows / 4;
  request.samples = {{.sample = sample, .rows = {{rank / 2 * rows, (rank / 2 + 1) * rows}}}};
  return request;
}

void ExpectSlice(int rank, const std::string& sample, const SampleRows& read) {
  ASSERT_EQ(read.record.status, SampleStatus::kOk) << sample << ": " << read.record.message;
  const RandomRoutes routes = MakeRandomRoutes(HandoffGeometry(), kRows, SeedOf(sample));
  const ReadRequest asked = SliceOf(rank, sample);
  for (size_t i = 0; i < asked.layers.size(); ++i) {
    ASSERT_TRUE(read.layers[i] == routes.Slice(asked.layers[i], asked.samples[0].rows)) << sample << " layer " << i;
  }
}

// Reads slices of sealed samples until `stop`. With `may_fail`, it stops at a failed read.
void Read(const std::string& endpoint, int rank, const Acknowledged& acknowledged, const std::atomic<bool>& stop,
          const std::atomic<bool>& may_fail, std::atomic<int>& reads) {
  const auto client = Client::Connect({.endpoint = endpoint, .call_timeout = kCallTimeout});
  ASSERT_OK(client);
  const auto run = (*client)->OpenRun("drain", HandoffGeometry());
  ASSERT_OK(run);
  for (size_t i = static_cast<size_t>(rank); !stop; ++i) {
    const std::vector<std::string> sealed = acknowledged.sealed();
    if (sealed.empty()) {
      std::this_thread::sleep_for(milliseconds(5));
      continue;
    }
    const std::string& sample = sealed[i % sealed.size()];
    const auto read = (*run)->ReadRows(SliceOf(rank, sample), may_fail ? std::chrono::seconds(2) : kCallTimeout);
    if (!read.ok() && may_fail) {
      EXPECT_TRUE(absl::IsUnavailable(read.status()) || absl::IsDeadlineExceeded(read.status())) << read.status();
      return;
    }
    ASSERT_OK(read);
    ExpectSlice(rank, sample, (*read)[0]);
    ++reads;
  }
}

void WaitUntil(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kCallTimeout;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(milliseconds(2));
  }
}

// Returns an address with a free port, which is not reserved; another process is unlikely to take it before the server
// does.
std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd, generic, size), 0);
  EXPECT_EQ(getsockname(fd, generic, &size), 0);
  close(fd);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

TEST(DrainTest, SigtermUnderLoadLosesNothingThatWasAcknowledged) {
  const ScratchDirectory directory;
  const std::string operations = FreeAddress();
  const std::vector<std::string> flags = {"--store",
                                          absl::StrCat("rocksdb:", directory.path(), "/db"),
                                          "--operations-listen",
                                          operations,
                                          "--drain-delay",
                                          "1s",
                                          "--drain-timeout",
                                          "10s"};
  ASSERT_OK_AND_ASSIGN(ServerProcess server, StartServerProcess(RR_SERVER, flags));
  EXPECT_EQ(HttpGet(operations, "/readyz").code, 200);
  Acknowledged acknowledged;
  std::atomic<bool> stop{false}, ending{false};
  std::atomic<int> reads{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] { Work(server.endpoint, i, std::chrono::seconds(2), stop, acknowledged); });
  }
  for (int i = 0; i < kRanks; ++i) {
    threads.emplace_back([&, i] { Read(server.endpoint, i, acknowledged, stop, ending, reads); });
  }
  // This read waits for rows that never come, for longer than a drain may take. It must not delay the exit of the
  // server.
  threads.emplace_back([&] {
    const auto client = Client::Connect({.endpoint = server.endpoint, .call_timeout = kCallTimeout});
    const auto run = (*client)->OpenRun("drain", HandoffGeometry());
    const auto read = (*run)->ReadRows({.samples = {{.sample = "never"}}, .wait = true}, std::chrono::seconds(12));
    EXPECT_TRUE(!read.ok() || (*read)[0].record.status != SampleStatus::kOk);
  });
  WaitUntil([&] { return acknowledged.sealed().size() >= 8 && reads >= 16; });

  ending = true;
  const auto begin = std::chrono::steady_clock::now();
  server.process->Signal(SIGTERM);
  // At first, the server reports that it is not ready, but it still answers calls.
  WaitUntil([&] { return HttpGet(operations, "/readyz").code == 503; });
  EXPECT_EQ(HttpGet(operations, "/readyz").body, "draining\n");
  EXPECT_EQ(HttpGet(operations, "/healthz").code, 200);
  EXPECT_NE(HttpGet(operations, "/metrics").body.find("\nrouting_replay_draining 1\n"), std::string::npos);
  {
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint}));
    EXPECT_OK(client->JoinRun("drain"));
  }
  EXPECT_THAT(server.process->Wait(kGracePeriod), ::testing::Eq(absl::StatusOr<int>(0)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kGracePeriod);
  stop = true;
  for (std::thread& thread : threads) thread.join();

  ASSERT_OK_AND_ASSIGN(server, StartServerProcess(RR_SERVER, flags));
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = server.endpoint, .call_timeout = kCallTimeout}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->JoinRun("drain"));
  for (const auto& [sample, rows] : acknowledged.rows()) {
    ASSERT_OK_AND_ASSIGN(const SampleState state, run->Stat(sample));
    EXPECT_GE(state.committed_rows, rows) << sample;
    EXPECT_EQ(state.revision, 0) << sample;
    const std::vector<RowRange> range = {{0, state.committed_rows}};
    ASSERT_OK_AND_ASSIGN(const auto read,
                         run->ReadRows({.samples = {{.sample = sample, .rows = range}}}, kCallTimeout));
    const RandomRoutes routes = MakeRandomRoutes(HandoffGeometry(), kRows, SeedOf(sample));
    ASSERT_EQ(read[0].record.status, SampleStatus::kOk) << sample;
    for (int32_t i = 0; i < 48; ++i) ASSERT_TRUE(read[0].layers[i] == routes.Slice(i, range)) << sample << " " << i;
  }
}

TEST(DrainTest, ARollingRestartOfTwoServersOverRedisFailsNoCall) {
  if (!NoRedisReason().empty()) GTEST_SKIP() << NoRedisReason();
  ASSERT_OK_AND_ASSIGN(const auto redis, RedisProcess::Start());
  const ScratchDirectory directory;
  const std::vector<std::string> flags = {
      "--store", absl::StrCat("redis://127.0.0.1:", redis->ports().client), "--drain-delay", "200ms", "--threads", "8"};
  ServerProcess servers[2];
  for (ServerProcess& server : servers) {
    ASSERT_OK_AND_ASSIGN(server, StartServerProcess(RR_SERVER, flags));
  }
  const std::string file = directory.path() + "/servers";
  const auto announce = [&] {
    std::ofstream(file + ".new") << servers[0].endpoint << "," << servers[1].endpoint << "\n";
    std::filesystem::rename(file + ".new", file);
  };
  announce();
  Acknowledged acknowledged;
  std::atomic<bool> stop{false};
  const std::atomic<bool> may_fail{false};
  std::atomic<int> reads{0};
  std::vector<std::thread> threads;
  const std::string endpoint = absl::StrCat("file:", file);
  for (int i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] { Work(endpoint, i, kCallTimeout, stop, acknowledged); });
  }
  for (int i = 0; i < kRanks; ++i) {
    threads.emplace_back([&, i] { Read(endpoint, i, acknowledged, stop, may_fail, reads); });
  }
  const auto goes_on = [&] {
    const size_t sealed = acknowledged.sealed().size();
    const int read = reads;
    WaitUntil([&] { return acknowledged.sealed().size() >= sealed + kWorkers && reads >= read + kRanks; });
  };
  goes_on();
  for (ServerProcess& server : servers) {
    server.process->Signal(SIGTERM);
    EXPECT_THAT(server.process->Wait(kGracePeriod), ::testing::Eq(absl::StatusOr<int>(0)));
    goes_on();
    ASSERT_OK_AND_ASSIGN(server, StartServerProcess(RR_SERVER, flags));
    announce();
    goes_on();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(acknowledged.failures(), ::testing::IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = endpoint, .call_timeout = kCallTimeout}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->JoinRun("drain"));
  for (const std::string& sample : acknowledged.sealed()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows(SliceOf(rank, sample), kCallTimeout));
      ExpectSlice(rank, sample, read[0]);
    }
  }
}

}  // namespace
}  // namespace routing_replay::testing
