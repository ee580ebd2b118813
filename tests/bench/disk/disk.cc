#include "tests/bench/disk/disk.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "routing_replay/client.h"
#include "server/server.h"
#include "tests/support/random_routes.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::steady_clock;

// The sync time of a common cloud disk, added to that of this machine's disk.
constexpr std::chrono::milliseconds kSyncTime(10);
std::atomic<bool> slow_syncs{false};

void BeforeSync() {
  if (slow_syncs) std::this_thread::sleep_for(kSyncTime);
}

}  // namespace
}  // namespace routing_replay::bench

#define RR_HOOK extern "C" __attribute__((visibility("default")))

// These functions replace the C library's in the whole program, so RocksDB's syncs take the added time, too.
RR_HOOK int fdatasync(int fd) {
  routing_replay::bench::BeforeSync();
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
RR_HOOK int fsync(int fd) {
  routing_replay::bench::BeforeSync();
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace routing_replay::bench {
namespace {

constexpr int kWriters = 16;
constexpr int64_t kRows = 64, kReadRows = 8;
constexpr std::chrono::milliseconds kPhase(2000), kQuickPhase(200);
constexpr std::chrono::seconds kTimeout(60);
constexpr char kRead[] = "read";

// A server with a RocksDB store in this process, and a run with synced appends.
class Service {
 public:
  absl::Status Start() {
    auto server = Server::Start(
        {.listen = {"127.0.0.1:0"}, .store = absl::StrCat("rocksdb:", directory_.path()), .durability = "synced"});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    auto client = Client::Connect({.endpoint = server_->advertised()});
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    auto run = client_->OpenRun("run", geometry_);
    if (!run.ok()) return run.status();
    run_ = *std::move(run);
    return Put(kRead, kReadRows);
  }

  absl::Status Put(const std::string& sample, int64_t rows) {
    const TensorDescription tensor{.dtype = DType::kI32,
                                   .shape = {rows, geometry_.num_moe_layers(), geometry_.layer(0).top_k},
                                   .layer_basis = LayerBasis::kMoeLayers};
    const size_t bytes = static_cast<size_t>(rows) * geometry_.num_moe_layers() * geometry_.layer(0).top_k * 4;
    return run_->Put({.sample = sample}, tensor, testing::AsBytes(tensor_).first(bytes)).status();
  }
  absl::Status Read() {
    const auto read = run_->ReadRows({.samples = {{.sample = kRead}}}, kTimeout);
    if (!read.ok()) return read.status();
    const bool right = read->front().rows == std::vector<RowRange>{{0, kReadRows}} &&
                       read->front().layers[0] == routes_.Slice(0, {{0, kReadRows}});
    return right ? absl::OkStatus() : absl::DataLossError("the read returned different rows");
  }

 private:
  const testing::ScratchDirectory directory_;
  const Geometry geometry_ = Geometry::Uniform(48, 128, 8);
  const testing::RandomRoutes routes_ = testing::MakeRandomRoutes(geometry_, kRows, 7);
  const std::vector<int32_t> tensor_ = routes_.Tensor({0, kRows});
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<Run> run_;
};

// Threads that each write one sample after the other until they are stopped.
class Writers {
 public:
  Writers(Service& service, int writers) : began_(steady_clock::now()) {
    static std::atomic<int> next{0};
    for (int i = 0; i < writers; ++i) {
      threads_.emplace_back([this, &service] {
        while (!stop_) {
          const absl::Status put = service.Put(absl::StrCat("sample-", next++), kRows);
          MutexLock lock(mutex_);
          status_.Update(put);
          ++puts_;
          if (!put.ok()) return;
        }
      });
    }
  }
  ~Writers() { Stop().status().IgnoreError(); }

  // Stops the threads and returns their appends per second.
  absl::StatusOr<double> Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    const std::chrono::duration<double> took = steady_clock::now() - began_;
    MutexLock lock(mutex_);
    if (!status_.ok()) return status_;
    return puts_ / took.count();
  }

 private:
  const steady_clock::time_point began_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int puts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

// Reads for `time` and returns the median time of a read in ms.
absl::StatusOr<double> ReadFor(Service& service, std::chrono::milliseconds time) {
  std::vector<double> took;
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end || took.empty()) {
    const auto start = steady_clock::now();
    if (absl::Status read = service.Read(); !read.ok()) return read;
    took.push_back(std::chrono::duration<double, std::milli>(steady_clock::now() - start).count());
  }
  return SpreadOf(std::move(took)).median;
}

struct Series {
  std::vector<double> one, many, alone, beside;
};

absl::Status PlayRound(std::chrono::milliseconds phase, Series& series) {
  Service service;
  if (absl::Status status = service.Start(); !status.ok()) return status;
  slow_syncs = true;
  const auto alone = ReadFor(service, phase);
  if (!alone.ok()) return alone.status();
  Writers writer(service, 1);
  std::this_thread::sleep_for(phase);
  const auto one = writer.Stop();
  if (!one.ok()) return one.status();
  Writers writers(service, kWriters);
  const auto beside = ReadFor(service, phase);
  const auto many = writers.Stop();
  if (!many.ok()) return many.status();
  if (!beside.ok()) return beside.status();
  slow_syncs = false;
  series.one.push_back(*one);
  series.many.push_back(*many);
  series.alone.push_back(*alone);
  series.beside.push_back(*beside);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchDisk(const BenchOptions& options) {
  Series series;
  for (int round = 0; round < options.rounds(); ++round) {
    if (absl::Status status = PlayRound(options.quick ? kQuickPhase : kPhase, series); !status.ok()) return status;
  }
  return std::vector<Figure>{
      MakeFigure(absl::StrCat("disk.synced.", kWriters, "-writers"), "1/s", series.many, "one writer", series.one),
      MakeFigure(absl::StrCat("disk.read.beside-", kWriters, "-writers"), "ms", series.beside, "alone", series.alone)};
}

}  // namespace routing_replay::bench
