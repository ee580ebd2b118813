#include "tests/bench/wire/wire.h"

#include <hwy/targets.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/allocator.h"
#include "tests/bench/wire/operation.h"
#include "tests/bench/wire/overhead.h"

namespace routing_replay::bench {
namespace {

constexpr int64_t kRows = 4095, kQuickRows = 511;
constexpr uint8_t kPoison = 0x6E;
constexpr double kMeasureSeconds = 0.01;

// Speeds of one operation and of the memcpy after it, by round.
struct Speeds {
  std::vector<double> operation, memcpy;
};

// CPU time of this thread, so that the time of other threads on the same core does not count.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// GB/s of `work`, which processes `bytes`. Runs it at least once, and until the time is long enough to measure.
double Measure(const std::function<void()>& work, size_t bytes, double seconds) {
  const double start = ThreadSeconds();
  double passed = 0;
  int64_t runs = 0;
  do {
    work();
    ++runs;
    passed = ThreadSeconds() - start;
  } while (passed < seconds);
  return 1e-9 * static_cast<double>(bytes) * static_cast<double>(runs) / passed;
}

absl::Status Check(const Operation& operation) {
  if (operation.collect) operation.collect();
  if (std::equal(operation.expected.begin(), operation.expected.end(), operation.output.begin())) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(operation.name, " writes wrong bytes"));
}

// Sets Highway's instruction set for the whole process; 0 leaves the choice to Highway.
void ChooseTarget(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();
}

absl::Status Play(const Operation& operation, Buffer& scratch, double seconds, Speeds& speeds) {
  std::fill(operation.output.begin(), operation.output.end(), kPoison);
  const size_t bytes = operation.input.size();
  ChooseTarget(operation.target);
  speeds.operation.push_back(Measure(operation.run, bytes, seconds));
  ChooseTarget(0);
  const auto copy = [&] { std::memcpy(scratch.data(), operation.input.data(), bytes); };
  speeds.memcpy.push_back(Measure(copy, bytes, seconds));
  return Check(operation);
}

std::vector<Operation> AllOperations(const WireSample& sample) {
  std::vector<Operation> all;
  for (const auto& make : {IngestOperations, ServerOperations, ReadOperations, TextOperations, ZstdOperations}) {
    std::vector<Operation> some = make(sample);
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

// Returns the operations. An operation that uses vector instructions appears once more for each instruction set that
// both this build and the CPU support.
std::vector<Operation> OnEachTarget(std::vector<Operation> operations) {
  const size_t count = operations.size();
  for (size_t i = 0; i < count; ++i) {
    if (!operations[i].vectors) continue;
    for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
      Operation on_target = operations[i];
      on_target.target = targets & -targets;
      absl::StrAppend(&on_target.name, ".", hwy::TargetName(on_target.target));
      operations.push_back(std::move(on_target));
    }
  }
  return operations;
}

std::vector<std::unique_ptr<const WireSample>> MakeSamples(int64_t rows) {
  std::vector<std::unique_ptr<const WireSample>> samples;
  samples.push_back(std::make_unique<const WireSample>("qwen3-30b", testing::Qwen3_30B_A3B(), rows));
  samples.push_back(std::make_unique<const WireSample>("kimi-k2", testing::KimiK2(), rows));
  samples.push_back(std::make_unique<const WireSample>("qwen3-next-80b", testing::Qwen3Next80B(), rows));
  samples.push_back(std::make_unique<const WireSample>("gpt-oss-20b", testing::GptOss20B(), rows));
  return samples;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchWire(const BenchOptions& options) {
  if (options.tuning.clients) TuneAllocator();
  const auto samples = MakeSamples(options.quick ? kQuickRows : kRows);
  std::vector<Operation> operations;
  size_t largest = 0;
  for (const auto& sample : samples) {
    for (Operation& operation : OnEachTarget(AllOperations(*sample))) {
      largest = std::max(largest, operation.input.size());
      operations.push_back(std::move(operation));
    }
  }
  Buffer scratch(largest);
  std::vector<Speeds> speeds(operations.size());
  for (int round = -kWarmUpRounds; round < options.rounds(); ++round) {
    if (round == 0) speeds.assign(operations.size(), {});
    for (size_t i = 0; i < operations.size(); ++i) {
      absl::Status status = Play(operations[i], scratch, options.quick ? 0 : kMeasureSeconds, speeds[i]);
      if (!status.ok()) return status;
    }
  }
  std::vector<Figure> figures;
  for (size_t i = 0; i < operations.size(); ++i) {
    figures.push_back(
        MakeFigure(absl::StrCat("wire.", operations[i].name), "GB/s", speeds[i].operation, "memcpy", speeds[i].memcpy));
  }
  for (const auto& sample : samples) {
    figures.push_back(MakeFigure(absl::StrCat("wire.", sample->model(), ".zstd-ratio"), "x", {ZstdRatio(*sample)}));
  }
  const auto overhead = OverheadFigures(options.quick);
  if (!overhead.ok()) return overhead.status();
  figures.insert(figures.end(), overhead->begin(), overhead->end());
  return figures;
}

}  // namespace routing_replay::bench
