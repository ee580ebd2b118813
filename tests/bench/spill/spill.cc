#include "tests/bench/spill/spill.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/bench/spill/spill_way.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::bench {
namespace {

struct BlockSize {
  std::string name;
  size_t bytes;
};
// The first size is that of a window of 256 rows of 48 layers with 8 one-byte ids.
const std::vector<BlockSize> kSizes = {
    {"standard", 98304}, {"64KiB", 64 << 10}, {"256KiB", 256 << 10}, {"1MiB", 1 << 20}};
constexpr size_t kRoundBytes = size_t{384} << 20, kQuickRoundBytes = size_t{8} << 20;

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// The cost of moving `gigabytes` on one thread.
struct Cost {
  double wall = 0, cpu = 0, gigabytes = 0;

  double rate() const { return gigabytes / wall; }
  double cpu_per_gigabyte() const { return cpu / gigabytes; }
};

template <typename Work>
absl::Status Measure(size_t bytes, Work work, Cost& cost) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = CpuSeconds();
  const absl::Status status = work();
  cost = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), CpuSeconds() - cpu,
          static_cast<double>(bytes) * 1e-9};
  return status;
}

struct Times {
  Cost write, read;
};

// The blocks are overlapping windows of one random buffer, each with another start.
class Blocks {
 public:
  Blocks(size_t block_bytes, size_t total) : block_bytes_(block_bytes), bytes_(block_bytes + total / block_bytes) {
    std::mt19937_64 random(7);
    std::generate(bytes_.begin(), bytes_.end(), [&] { return static_cast<uint8_t>(random()); });
    order_.resize(total / block_bytes);
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::shuffle(order_.begin(), order_.end(), random);
  }

  size_t count() const { return order_.size(); }
  size_t total() const { return count() * block_bytes_; }
  size_t block_bytes() const { return block_bytes_; }
  absl::Span<const uint8_t> block(size_t i) const { return absl::MakeConstSpan(bytes_).subspan(i, block_bytes_); }
  const std::vector<size_t>& order() const { return order_; }

 private:
  const size_t block_bytes_;
  std::vector<uint8_t> bytes_;
  std::vector<size_t> order_;
};

absl::Status WriteAll(SpillWay& way, const Blocks& blocks) {
  for (size_t i = 0; i < blocks.count(); ++i) {
    if (absl::Status status = way.Write(blocks.block(i)); !status.ok()) return status;
  }
  return way.Flush();
}

absl::Status ReadAll(SpillWay& way, const Blocks& blocks) {
  for (const size_t i : blocks.order()) {
    const bool same = way.Read(i, blocks.block_bytes(), [&](absl::Span<const uint8_t> bytes) {
      return bytes.size() == blocks.block_bytes() && std::memcmp(bytes.data(), blocks.block(i).data(), 64) == 0;
    });
    if (!same) return absl::InternalError(absl::StrCat("block ", i, " came back changed, or not at all"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Times> Play(MakeSpillWay make, const Blocks& blocks) {
  const testing::ScratchDirectory directory;
  const absl::StatusOr<std::unique_ptr<SpillWay>> way = make(directory.path());
  if (!way.ok()) return way.status();
  Times times;
  absl::Status status = Measure(
      blocks.total(), [&] { return WriteAll(**way, blocks); }, times.write);
  if (status.ok())
    status = Measure(
        blocks.total(), [&] { return ReadAll(**way, blocks); }, times.read);
  if (!status.ok()) return status;
  return times;
}

struct Series {
  std::vector<double> write, read, write_cpu, read_cpu;

  void Add(const Times& times) {
    write.push_back(times.write.rate());
    read.push_back(times.read.rate());
    write_cpu.push_back(times.write.cpu_per_gigabyte());
    read_cpu.push_back(times.read.cpu_per_gigabyte());
  }
};

absl::Status PlaySize(const BlockSize& size, const BenchOptions& options, std::vector<Figure>& figures) {
  const Blocks blocks(size.bytes, options.quick ? kQuickRoundBytes : kRoundBytes);
  Series segments, rocks;
  for (int round = options.quick ? 0 : -1; round < options.rounds(); ++round) {
    const auto play = [&](MakeSpillWay make, Series& series) {
      const absl::StatusOr<Times> times = Play(make, blocks);
      if (times.ok() && round >= 0) series.Add(*times);
      return times.status();
    };
    // The order alternates from round to round: whichever way comes second competes with the first one's data that the
    // system still writes to the disk.
    const bool segments_first = round % 2 == 0;
    absl::Status status = segments_first ? play(SegmentFiles, segments) : play(RocksBlobs, rocks);
    if (status.ok()) status = segments_first ? play(RocksBlobs, rocks) : play(SegmentFiles, segments);
    if (!status.ok()) return status;
  }
  const std::string name = absl::StrCat("spill.", size.name);
  figures.push_back(MakeFigure(name + ".write.rocksdb", "GB/s", rocks.write, "segments", segments.write));
  figures.push_back(MakeFigure(name + ".read.rocksdb", "GB/s", rocks.read, "segments", segments.read));
  figures.push_back(MakeFigure(name + ".write.rocksdb.cpu", "s/GB", rocks.write_cpu, "segments", segments.write_cpu));
  figures.push_back(MakeFigure(name + ".read.rocksdb.cpu", "s/GB", rocks.read_cpu, "segments", segments.read_cpu));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchSpill(const BenchOptions& options) {
  std::vector<Figure> figures;
  for (const BlockSize& size : kSizes) {
    if (absl::Status status = PlaySize(size, options, figures); !status.ok()) return status;
  }
  return figures;
}

}  // namespace routing_replay::bench
