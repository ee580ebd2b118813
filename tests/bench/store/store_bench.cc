#include "tests/bench/store/store_bench.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/allocator.h"
#include "server/store/memory/memory_store.h"
#include "server/store/redis/redis_store.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/bench/common/process_usage.h"
#include "tests/bench/store/side.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using testing::RedisProcess;

constexpr int32_t kExperts[] = {128, 512};
constexpr int32_t kAppendShapes[] = {1, 8};
constexpr int64_t kBudget = int64_t{4} << 30;
constexpr std::chrono::seconds kConnectTimeout{10};

// Rates of one side for one step, one value per round.
struct Took {
  std::vector<double> gb_s, cpu_s_gb, engine_cpu_s_gb;
};

// By step.
using Steps = std::map<std::string, Took>;

struct Contender {
  std::string name;
  std::unique_ptr<Side> side;
  Steps took;
};

// A store and the sides that it is compared with. The first of these is the engine that it is built on.
struct Comparison {
  Contender store;
  std::vector<Contender> floors;
  bool reads = true;
  std::vector<pid_t> engine_process;  // Set if the engine is a separate process.
};

absl::Status Measure(const Workload& workload, absl::Span<const pid_t> engine, Took& took,
                     const std::function<absl::Status()>& step) {
  const pid_t self = getpid();
  const double cpu = CpuSeconds({&self, 1}), engine_cpu = CpuSeconds(engine);
  const auto begin = std::chrono::steady_clock::now();
  if (absl::Status status = step(); !status.ok()) return status;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const double gb = 1e-9 * static_cast<double>(workload.bytes());
  took.gb_s.push_back(gb / wall.count());
  took.cpu_s_gb.push_back((CpuSeconds({&self, 1}) - cpu) / gb);
  took.engine_cpu_s_gb.push_back((CpuSeconds(engine) - engine_cpu) / gb);
  return absl::OkStatus();
}

// Plays one append shape. If reads are measured, the appended blocks are read and compared.
absl::Status RunContender(const Workload& workload, const Comparison& comparison, Contender& contender,
                          int32_t blocks) {
  Side& side = *contender.side;
  absl::Status status = side.Begin(blocks);
  const auto measure = [&](const std::string& step, const std::function<absl::Status()>& call) {
    if (status.ok()) status = Measure(workload, comparison.engine_process, contender.took[step], call);
  };
  measure(absl::StrCat("append-", blocks), [&] { return side.Append(blocks); });
  if (comparison.reads && blocks == kAppendShapes[0]) measure("read", [&] { return side.Read(); });
  if (status.ok()) status = side.Check();
  const absl::Status ended = side.End();
  if (status.ok()) status = ended;
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(contender.name, ": ", status.message()));
}

absl::Status RunRound(const Workload& workload, Comparison& comparison) {
  for (const int32_t blocks : kAppendShapes) {
    for (Contender& floor : comparison.floors) {
      absl::Status status = RunContender(workload, comparison, floor, blocks);
      if (!status.ok()) return status;
    }
    absl::Status status = RunContender(workload, comparison, comparison.store, blocks);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

void Forget(Comparison& comparison) {
  comparison.store.took.clear();
  for (Contender& floor : comparison.floors) floor.took.clear();
}

void AddFigures(const Workload& workload, const Comparison& comparison, std::vector<Figure>& figures) {
  for (const auto& [step, took] : comparison.store.took) {
    const std::string name = absl::StrCat("store.", comparison.store.name, ".e", workload.num_experts(), ".", step);
    const auto add = [&](const std::string& what, const std::string& unit, const Contender& floor,
                         std::vector<double> Took::*values) {
      figures.push_back(MakeFigure(name + what, unit, took.*values, floor.name, floor.took.at(step).*values));
    };
    const Contender& engine = comparison.floors.front();
    add("", "GB/s", engine, &Took::gb_s);
    for (size_t i = 1; i < comparison.floors.size(); ++i) {
      const Contender& floor = comparison.floors[i];
      add("/" + floor.name, "GB/s", floor, &Took::gb_s);
    }
    add(".cpu", "s/GB", engine, &Took::cpu_s_gb);
    if (!comparison.engine_process.empty()) add(".redis-server-cpu", "s/GB", engine, &Took::engine_cpu_s_gb);
  }
}

MakeStore NewRocks(const std::string& directory, ByteBudget& budget) {
  return [directory, &budget]() -> absl::StatusOr<std::unique_ptr<Store>> {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    RecoveryReport report;
    return OpenRocksStore({.path = directory, .memory = {.budget = &budget}}, report);
  };
}

absl::StatusOr<MakeStore> NewRedis(const RedisProcess& redis) {
  const auto deadline = Clock::Real().Now() + kConnectTimeout;
  absl::StatusOr<std::shared_ptr<RedisCluster>> cluster = RedisCluster::Connect(redis.endpoint(), {}, deadline);
  if (!cluster.ok()) return cluster.status();
  return MakeStore([cluster = *cluster]() -> absl::StatusOr<std::unique_ptr<Store>> {
    const RedisRequest flush{.command = RedisCommand({"FLUSHALL", "SYNC"}), .key = ""};
    const RedisResult flushed = cluster->Execute({&flush, 1}, Clock::Real().Now() + kConnectTimeout).front();
    if (!flushed.reply.ok()) return flushed.reply.status();
    return NewRedisStore(cluster, {});
  });
}

Contender StoreOf(const Workload& workload, StoreSideOptions options, MakeStore make, ByteBudget& budget) {
  const std::string name = options.name;
  return {.name = name, .side = NewStoreSide(workload, std::move(options), std::move(make), budget)};
}

Comparison CompareMemory(const Workload& workload, ByteBudget& budget) {
  const auto make = [&budget]() -> absl::StatusOr<std::unique_ptr<Store>> {
    return NewMemoryStore({.budget = &budget});
  };
  Comparison comparison{.store = StoreOf(workload, {.name = "memory", .in_memory = true}, make, budget)};
  comparison.floors.push_back({.name = "memcpy", .side = NewMemcpySide(workload)});
  return comparison;
}

Comparison CompareRocks(const Workload& workload, const std::string& directory, Durability durability,
                        ByteBudget& budget) {
  const bool synced = durability == Durability::kSynced;
  const StoreSideOptions options{.name = synced ? "rocksdb-synced" : "rocksdb", .durability = durability};
  Comparison comparison{.store = StoreOf(workload, options, NewRocks(directory + "/store", budget), budget),
                        .reads = !synced};
  comparison.floors.push_back({.name = "rocksdb", .side = NewRocksSide(workload, directory + "/engine", durability)});
  if (synced) comparison.floors.push_back({.name = "fdatasync", .side = NewFileSide(workload, directory + "/files")});
  return comparison;
}

absl::StatusOr<Comparison> CompareRedis(const Workload& workload, const RedisProcess& redis, ByteBudget& budget) {
  const absl::StatusOr<MakeStore> make = NewRedis(redis);
  if (!make.ok()) return make.status();
  Comparison comparison{.store = StoreOf(workload, {.name = "redis"}, *make, budget), .engine_process = {redis.pid()}};
  comparison.floors.push_back({.name = "redis", .side = NewRedisSide(workload, redis.address().port)});
  return comparison;
}

absl::StatusOr<std::unique_ptr<RedisProcess>> StartRedis() {
  const std::string reason = testing::NoRedisReason();
  if (reason.empty()) return RedisProcess::Start();
  std::cerr << "routing-replay-bench: " << reason << ": the figures store.redis.* are skipped\n";
  return nullptr;
}

absl::Status BenchWorkload(const BenchOptions& options, int32_t experts, const RedisProcess* redis, ByteBudget& budget,
                           std::vector<Figure>& figures) {
  const testing::ScratchDirectory scratch;
  const Workload workload(experts, options.quick);
  std::vector<Comparison> comparisons;
  comparisons.push_back(CompareMemory(workload, budget));
  for (const Durability durability : {Durability::kWritten, Durability::kSynced}) {
    comparisons.push_back(CompareRocks(workload, scratch.path(), durability, budget));
  }
  if (redis != nullptr) {
    absl::StatusOr<Comparison> comparison = CompareRedis(workload, *redis, budget);
    if (!comparison.ok()) return comparison.status();
    comparisons.push_back(*std::move(comparison));
  }
  const int warm_up = options.quick ? 0 : kWarmUpRounds;
  for (int round = 0; round < warm_up + options.rounds(); ++round) {
    for (Comparison& comparison : comparisons) {
      if (round == warm_up) Forget(comparison);
      if (absl::Status status = RunRound(workload, comparison); !status.ok()) return status;
    }
  }
  for (const Comparison& comparison : comparisons) AddFigures(workload, comparison, figures);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchStore(const BenchOptions& options) {
  if (options.tuning.server) TuneAllocator();
  const absl::StatusOr<std::unique_ptr<RedisProcess>> redis = StartRedis();
  if (!redis.ok()) return redis.status();
  ByteBudget budget(kBudget);
  std::vector<Figure> figures;
  for (const int32_t experts : kExperts) {
    absl::Status status = BenchWorkload(options, experts, redis->get(), budget, figures);
    if (!status.ok()) return status;
  }
  return figures;
}

}  // namespace routing_replay::bench
