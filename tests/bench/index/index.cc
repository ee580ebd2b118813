#include "tests/bench/index/index.h"

#include <malloc.h>

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "routing_replay/wire/allocator.h"
#include "server/store/memory/memory_store.h"
#include "server/store/rocksdb/rocks_store.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::bench {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr int64_t kSamples = 1'000'000, kQuickSamples = 20'000;
constexpr int64_t kRows = 16;
constexpr int64_t kStats = 200'000;
constexpr int32_t kPage = 1000;
constexpr auto kRollout = Producer::kRollout;
constexpr char kRun[] = "run";
constexpr int64_t kRocksCacheBytes = int64_t{8} << 20;

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

std::string SampleId(int64_t i) { return absl::StrFormat("grpo-42/%06d/%02d/%d", i / 64, i / 8 % 8, i % 8); }

class Trial {
 public:
  Trial(std::string name, int64_t samples) : name_(std::move(name)), samples_(samples) {}

  // `resident`: whether the store keeps the expert ids in memory.
  absl::Status Play(Store& store, ByteBudget& budget, bool resident);
  const std::vector<Figure>& figures() const { return figures_; }

 private:
  absl::Status Open(Store& store, const RunInfo& run) const;
  absl::Status Stat(Store& store) const;
  absl::Status List(Store& store) const;
  void Add(const std::string& what, const std::string& unit, double value) {
    figures_.push_back(MakeFigure(absl::StrCat("index.", name_, ".", what), unit, {value}));
  }
  template <typename Work>
  absl::Status Time(const std::string& what, const std::string& unit, double factor, Work work) {
    absl::Status status;
    const double seconds = Seconds([&] { status = work(); });
    Add(what, unit, seconds * factor);
    return status;
  }

  const std::string name_;
  const int64_t samples_;
  const Geometry geometry_ = Geometry::Uniform(8, 64, 4);
  std::vector<Figure> figures_;
};

AppendCommand SmallSample(const RunInfo& run, int64_t i) {
  const Geometry& geometry = *run.geometry;
  AppendCommand command{.run = run.run, .geometry = run.geometry};
  command.header.sample = SampleId(i);
  command.header.rows = {0, kRows};
  command.header.group = i / 64;
  command.header.weight_version = i / 4096;
  command.header.engine = "vllm-0.11.0";
  command.header.token_ids = std::string(4 * kRows, static_cast<char>(i));
  command.header.seal_num_tokens = kRows + 1;
  Block block{.rows = {0, kRows}, .codec = Codec::kRaw, .bytes = Buffer(geometry.block_bytes(kRows, Codec::kRaw))};
  for (size_t at = 0; at < block.bytes.size(); ++at) block.bytes.data()[at] = static_cast<uint8_t>((at + i) % 64);
  ComputeCrc(geometry, block);
  command.blocks.push_back(std::move(block));
  return command;
}

absl::Status Trial::Open(Store& store, const RunInfo& run) const {
  for (int64_t i = 0; i < samples_; ++i) {
    const auto ack = store.Append(SmallSample(run, i));
    if (!ack.ok()) return ack.status();
  }
  return absl::OkStatus();
}

absl::Status Trial::Stat(Store& store) const {
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < kStats; ++i) {
    const auto state = store.Stat(kRun, kRollout, {.sample = SampleId(static_cast<int64_t>(random() % samples_))});
    if (!state.ok()) return state.status();
    if (state->committed_rows != kRows) return absl::InternalError(absl::StrCat(state->sample, " has other rows"));
  }
  return absl::OkStatus();
}

absl::Status Trial::List(Store& store) const {
  int64_t listed = 0;
  std::string token;
  do {
    const auto page = store.List(kRun, kRollout, std::nullopt, kPage, token);
    if (!page.ok()) return page.status();
    listed += static_cast<int64_t>(page->samples.size());
    token = page->next_token;
  } while (!token.empty());
  return listed == samples_ ? absl::OkStatus() : absl::InternalError(absl::StrCat(listed, " samples were listed"));
}

absl::Status Trial::Play(Store& store, ByteBudget& budget, bool resident) {
  const auto run = store.OpenRun(kRun, &geometry_, std::nullopt);
  if (!run.ok()) return run.status();
  const double samples = static_cast<double>(samples_);
  const int64_t stored = geometry_.block_bytes(kRows, run->options.codec);
  const int64_t beside = 4 * geometry_.num_moe_layers() + (resident ? stored : 0);
  const auto per_sample = [&](int64_t bytes) { return static_cast<double>(bytes) / samples - beside; };
  const int64_t heap = HeapBytes();
  absl::Status status = Time("open", "us", 1e6 / samples, [&] { return Open(store, *run); });
  if (!status.ok()) return status;
  Add("heap", "bytes", per_sample(HeapBytes() - heap));
  Add("charged", "bytes", per_sample(budget.used()));
  status = Time("stat", "us", 1e6 / kStats, [&] { return Stat(store); });
  if (status.ok()) status = Time("list-page", "ms", 1e3 * kPage / samples, [&] { return List(store); });
  if (status.ok()) status = Time("drop", "s", 1, [&] { return store.DropRun(kRun).status(); });
  if (status.ok()) Add("heap-left", "bytes", static_cast<double>(HeapBytes() - heap) / samples);
  return status;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchIndex(const BenchOptions& options) {
  if (options.tuning.server) TuneAllocator();
  const int64_t samples = options.quick ? kQuickSamples : kSamples;
  const testing::ScratchDirectory directory;
  ByteBudget budget(int64_t{1} << 40);
  std::vector<Figure> figures;
  const auto play = [&](const std::string& name, Store& store, bool resident) {
    Trial trial(name, samples);
    const absl::Status status = trial.Play(store, budget, resident);
    figures.insert(figures.end(), trial.figures().begin(), trial.figures().end());
    return status;
  };
  absl::Status status = play("memory", *NewMemoryStore({.budget = &budget}), true);
  if (!status.ok()) return status;
  auto disk = OpenSpillDirectory(directory.path() + "/spill");
  if (!disk.ok()) return disk.status();
  // No sample gets cold here, so nothing is spilled: this measures what the mere ability to spill costs.
  status = play("memory-spill", *NewMemoryStore({.budget = &budget, .spill = {.disk = *disk}}), true);
  if (!status.ok()) return status;
  RecoveryReport report;
  auto rocks = OpenRocksStore(
      {.path = directory.path() + "/rocksdb", .cache_bytes = kRocksCacheBytes, .memory = {.budget = &budget}}, report);
  if (!rocks.ok()) return rocks.status();
  if (status = play("rocksdb", **rocks, false); !status.ok()) return status;
  // The memory store once more, in a process that has already stored and dropped millions of samples.
  if (status = play("memory-later", *NewMemoryStore({.budget = &budget}), true); !status.ok()) return status;
  return figures;
}

}  // namespace routing_replay::bench
