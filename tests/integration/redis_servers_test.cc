// Two servers over a Redis Cluster of six nodes. Four writers and eight readers continue while each server is killed
// and restarted at another address, and slots move between the masters.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_cluster.h"
#include "tests/integration/chaos_routes.h"
#include "tests/integration/fixture.h"
#include "tests/support/redis/redis_cluster_process.h"
#include "tests/support/server_process.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::milliseconds;

constexpr int kWriters = 4, kReaders = 8, kSamplesPerWriter = 10, kSamplesPerRead = 4;
constexpr int64_t kRows = 3000, kStep = 150;

std::string NameOf(int writer, int sample) { return absl::StrCat("w", writer, "/", sample); }
uint64_t SeedOf(const std::string& sample) { return std::hash<std::string>()(sample); }

// The two servers, and the file with their addresses.
class Servers {
 public:
  Servers(std::string file, const std::string& store) : file_(std::move(file)), flags_({"--store", store}) {
    for (ServerProcess& server : servers_) server = *StartServerProcess(RR_SERVER, flags_);
    Announce();
  }
  std::string endpoint() const { return absl::StrCat("file:", file_); }
  const std::string& endpoint_of(int index) const { return servers_[index].endpoint; }

  void KillAndRestart(int index, milliseconds between) {
    servers_[index].process->Signal(SIGKILL);
    ASSERT_OK(servers_[index].process->Wait(std::chrono::seconds(10)));
    std::this_thread::sleep_for(between);
    ASSERT_OK_AND_ASSIGN(servers_[index], StartServerProcess(RR_SERVER, flags_));
    Announce();
  }

 private:
  void Announce() const {
    std::ofstream(file_ + ".new") << servers_[0].endpoint << "," << servers_[1].endpoint << "\n";
    std::filesystem::rename(file_ + ".new", file_);
  }

  const std::string file_;
  const std::vector<std::string> flags_;
  ServerProcess servers_[2];
};

// Names of sealed samples.
class Sealed {
 public:
  void Add(const std::string& sample) {
    MutexLock lock(mutex_);
    samples_.push_back(sample);
  }
  std::vector<std::string> Some(std::mt19937_64& random) const {
    MutexLock lock(mutex_);
    std::vector<std::string> some;
    for (int i = 0; i < kSamplesPerRead && !samples_.empty(); ++i) some.push_back(samples_[random() % samples_.size()]);
    return some;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> samples_ ABSL_GUARDED_BY(mutex_);
};

absl::Status WriteSamples(const std::string& endpoint, int writer, Sealed& sealed, AppenderMetrics& metrics) {
  auto client = Client::Connect({.endpoint = endpoint, .call_timeout = kCallTimeout});
  if (!client.ok()) return client.status();
  auto run = (*client)->OpenRun("two", ChaosGeometry());
  if (!run.ok()) return run.status();
  AppenderOptions options;
  options.on_outcome = [&](const AppendOutcome& outcome) {
    EXPECT_EQ(outcome.conflicting_rows, 0);
    if (outcome.status.ok() && outcome.sealed) sealed.Add(outcome.sample);
  };
  const auto appender = (*run)->NewAppender(options);
  absl::Status status;
  for (int sample = 0; sample < kSamplesPerWriter && status.ok(); ++sample) {
    const std::string name = NameOf(writer, sample);
    const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), kRows, SeedOf(name));
    const std::vector<uint32_t> tokens = MakeTokens(kRows + 1, SeedOf(name));
    for (int64_t begin = 0; begin < kRows && status.ok(); begin += kStep) {
      AppendOptions append{.sample = name, .row_start = begin, .token_ids = tokens};
      if (begin + kStep == kRows) append.seal_num_tokens = kRows + 1;
      status =
          appender->Append(append, Int32Tensor(ChaosGeometry(), kStep), AsBytes(routes.Tensor({begin, begin + kStep})));
      if (begin % (5 * kStep) == 0) std::this_thread::sleep_for(milliseconds(5));
    }
  }
  status.Update(appender->Flush(kCallTimeout));
  metrics = appender->metrics();
  return status;
}

void ExpectExact(const std::vector<std::string>& names, const std::vector<SampleRows>& read) {
  ASSERT_EQ(read.size(), names.size());
  for (size_t s = 0; s < names.size(); ++s) {
    ASSERT_EQ(read[s].record.status, SampleStatus::kOk) << names[s] << ": " << read[s].record.message;
    const RandomRoutes routes = MakeRandomRoutes(ChaosGeometry(), kRows, SeedOf(names[s]));
    ASSERT_TRUE(read[s].layers == routes.layers) << names[s];
  }
}

ReadRequest Ask(const std::vector<std::string>& names) {
  ReadRequest request;
  for (const std::string& name : names) request.samples.push_back({.sample = name, .num_tokens = kRows + 1});
  return request;
}

struct ReaderFigures {
  double longest_ms = 0;
  int64_t reads = 0;
};

void ReadUntil(const std::string& endpoint, uint64_t seed, const Sealed& sealed, const std::atomic<bool>& stop,
               ReaderFigures& figures) {
  std::mt19937_64 random(seed);
  const auto client = Client::Connect({.endpoint = endpoint, .call_timeout = kCallTimeout});
  ASSERT_OK(client);
  const auto run = (*client)->OpenRun("two", ChaosGeometry());
  ASSERT_OK(run);
  while (!stop) {
    const std::vector<std::string> names = sealed.Some(random);
    if (names.empty()) {
      std::this_thread::sleep_for(milliseconds(5));
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto read = (*run)->ReadRows(Ask(names), kCallTimeout);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    ASSERT_OK(read);
    ExpectExact(names, *read);
    figures.longest_ms = std::max(figures.longest_ms, took.count());
    ++figures.reads;
  }
}

// Moves slots that hold keys from master to master, while clients use these keys, until `stop`. Returns the number of
// moved slots.
int Reshard(RedisClusterProcess& cluster, const std::atomic<bool>& stop) {
  int moved = 0;
  for (int from = 0; !stop; from = (from + 1) % RedisClusterProcess::kMasters) {
    const auto keys = cluster.node(from).Ask(RedisCommand({"KEYS", "*"}));
    if (!keys.ok() || keys->elements.empty()) continue;
    for (size_t i = 0; i < keys->elements.size() && i < 3 && !stop; ++i) {
      const int slot = RedisSlotOf(keys->elements[i * keys->elements.size() / 3].text);
      const absl::Status status = cluster.MoveSlot(slot, (from + 1) % RedisClusterProcess::kMasters);
      EXPECT_OK(status);
      moved += status.ok();
    }
  }
  return moved;
}

TEST(RedisServersTest, ServersComeAndGoAndSlotsMove) {
  if (!NoRedisReason().empty()) GTEST_SKIP() << NoRedisReason();
  ASSERT_OK_AND_ASSIGN(const auto cluster, RedisClusterProcess::Start());
  const ScratchDirectory directory;
  Servers servers(directory.path() + "/servers", cluster->url());
  Sealed sealed;
  std::atomic<bool> written{false}, stop{false};
  std::vector<AppenderMetrics> metrics(kWriters);
  std::vector<ReaderFigures> figures(kReaders);
  std::vector<std::thread> writers, readers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, i] { EXPECT_OK(WriteSamples(servers.endpoint(), i, sealed, metrics[i])); });
  }
  for (int i = 0; i < kReaders; ++i) {
    readers.emplace_back([&, i] { ReadUntil(servers.endpoint(), i, sealed, stop, figures[i]); });
  }
  int moved = 0;
  std::thread resharding([&] { moved = Reshard(*cluster, written); });
  for (int round = 0; round < 2; ++round) {
    std::this_thread::sleep_for(milliseconds(700));
    servers.KillAndRestart(round, milliseconds(500));
  }
  for (std::thread& writer : writers) writer.join();
  written = true;
  resharding.join();
  std::this_thread::sleep_for(milliseconds(300));
  stop = true;
  for (std::thread& reader : readers) reader.join();

  std::vector<std::string> all;
  for (int writer = 0; writer < kWriters; ++writer) {
    for (int sample = 0; sample < kSamplesPerWriter; ++sample) all.push_back(NameOf(writer, sample));
  }
  for (int server = 0; server < 2; ++server) {
    ASSERT_OK_AND_ASSIGN(const auto client, Client::Connect({.endpoint = servers.endpoint_of(server)}));
    ASSERT_OK_AND_ASSIGN(const auto run, client->JoinRun("two"));
    ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows(Ask(all), kCallTimeout));
    ExpectExact(all, read);
  }
  int64_t reconnects = 0, reads = 0;
  double longest_ms = 0;
  for (const AppenderMetrics& one : metrics) reconnects += one.reconnects;
  for (const ReaderFigures& one : figures) {
    reads += one.reads;
    longest_ms = std::max(longest_ms, one.longest_ms);
  }
  EXPECT_GT(moved, 0);
  EXPECT_GT(reads, 0);
  std::printf("%d slots moved, appenders reconnected %ld times; of %ld reads the longest took %.0f ms\n", moved,
              static_cast<long>(reconnects), static_cast<long>(reads), longest_ms);
}

}  // namespace
}  // namespace routing_replay::testing
