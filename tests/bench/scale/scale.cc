#include "tests/bench/scale/scale.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "tests/bench/common/process_usage.h"
#include "tests/bench/common/processes.h"
#include "tests/bench/scale/ends.h"
#include "tests/bench/scale/fit.h"

namespace routing_replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A round moves a million samples and 2 GiB, so three rounds are enough.
constexpr int kMostRounds = 3;
constexpr int kExtrapolatedRanks = 10240;
// Memory that the server may use beyond 1.15 times the ids that it holds.
constexpr double kServerMb = 67.1;

// One quantity that grows from the smallest size to the largest, while the others stay constant.
struct Axis {
  std::string name;
  std::function<double(const Shape&)> size;
  std::vector<Shape> shapes;
};

std::vector<Axis> Axes(bool quick) {
  const auto shapes = [quick](std::vector<int64_t> sizes, std::vector<int64_t> quick_sizes, const auto& shape) {
    std::vector<Shape> made;
    for (const int64_t size : quick ? quick_sizes : sizes) made.push_back(shape(size));
    return made;
  };
  return {
      // Samples of only 512 bytes, so that the cost of a sample outweighs that of its rows.
      {"samples", [](const Shape& s) { return static_cast<double>(s.samples); },
       shapes({1000, 10'000, 100'000, 1'000'000}, {100, 1000},
              [](int64_t samples) { return Shape{.samples = samples, .rows = 16, .layers = 4}; })},
      // Samples of 1.5 MiB, 2 GiB in total at the largest size.
      {"bytes", [](const Shape& s) { return static_cast<double>(s.bytes()); },
       shapes({86, 171, 342, 683, 1366}, {4, 8},
              [](int64_t samples) { return Shape{.samples = samples, .rows = 4096, .layers = 48}; })},
      {"layers", [](const Shape& s) { return static_cast<double>(s.layers); },
       shapes({6, 12, 24, 48, 96}, {4, 16},
              [quick](int64_t layers) {
                return Shape{.samples = quick ? 4 : 256, .rows = 2048, .layers = static_cast<int32_t>(layers)};
              })},
      // One sample of 192 KiB for each rank, as in a data-parallel trainer that grows.
      {"ranks", [](const Shape& s) { return static_cast<double>(s.ranks); },
       shapes({8, 16, 32, 64, 128, 256, 512}, {2, 4, 8},
              [](int64_t ranks) {
                return Shape{.samples = ranks, .rows = 512, .layers = 48, .ranks = static_cast<int>(ranks)};
              })},
  };
}

// The cost of one hand-off. The memory of a process is its peak minus its use before the hand-off.
struct Cost {
  double wall_s = 0, cpu_s = 0;
  double server_mb = 0, writer_mb = 0, readers_mb = 0;
  double server_peak_mb = 0;  // Including its use before.
};

double Megabytes(int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }

absl::StatusOr<Cost> Play(const BenchOptions& options, const Shape& shape) {
  RR_ASSIGN_OR_RETURN(auto server, StartServer(options.server));
  const bool tuned = options.tuning.clients;
  RR_ASSIGN_OR_RETURN(auto writer, StartTeam("writer", 1, tuned, [&](int) { return MakeWriter(shape); }));
  RR_ASSIGN_OR_RETURN(auto readers, StartTeam("readers", 1, tuned, [&](int) { return MakeReaders(shape); }));
  const std::vector<pid_t> pids{server.process->pid(), writer.pids()[0], readers.pids()[0]};
  ResetPeakMemory(pids);
  const std::vector<int64_t> before = ResidentBytes(pids);
  const double cpu = CpuSeconds(pids);
  const Clock::time_point start = Clock::now();
  RR_RETURN_IF_ERROR(writer.Call(absl::StrCat("append ", server.endpoint)).status());
  RR_RETURN_IF_ERROR(readers.Call(absl::StrCat("read ", server.endpoint)).status());
  Cost cost{.wall_s = std::chrono::duration<double>(Clock::now() - start).count(), .cpu_s = CpuSeconds(pids) - cpu};
  const std::vector<int64_t> peak = PeakBytes(pids);
  cost.server_mb = Megabytes(peak[0] - before[0]);
  cost.writer_mb = Megabytes(peak[1] - before[1]);
  cost.readers_mb = Megabytes(peak[2] - before[2]);
  cost.server_peak_mb = Megabytes(peak[0]);
  return cost;
}

struct Kind {
  const char* name;
  const char* unit;
  double Cost::*value;
};
constexpr Kind kKinds[] = {
    {"wall", "s", &Cost::wall_s}, {"cpu", "s", &Cost::cpu_s}, {"server-memory", "MB", &Cost::server_mb}};

// The rounds of one axis: costs by round, then by shape.
class Growth {
 public:
  Growth(const Axis& axis, std::vector<std::vector<Cost>> rounds) : axis_(axis), rounds_(std::move(rounds)) {}

  std::vector<Figure> Figures() const {
    std::vector<Figure> figures;
    for (const Kind& kind : kKinds) {
      figures.push_back(MakeFigure(Name("exponent", kind.name), "-", OfRounds([&](const std::vector<Cost>& costs) {
                                     return Exponent(Points(costs, kind));
                                   })));
    }
    for (const Kind& kind : kKinds) {
      figures.push_back(MakeFigure(Name("largest", kind.name), kind.unit,
                                   OfRounds([&](const std::vector<Cost>& costs) { return costs.back().*kind.value; })));
    }
    return figures;
  }

  // The memory that each process needs for the largest size, 2 GiB, beside its limit.
  std::vector<Figure> Bounds() const {
    const double ids = Megabytes(axis_.shapes.back().bytes());
    const auto beside = [&](const char* name, double Cost::*value, const char* bound_name, double bound) {
      return MakeFigure(Name("most", name), "MB", OfRounds([&](const auto& costs) { return costs.back().*value; }),
                        bound_name, std::vector<double>(rounds_.size(), bound));
    };
    return {beside("server-memory", &Cost::server_peak_mb, "1.15 x ids + 64 MiB", 1.15 * ids + kServerMb),
            beside("writer-memory", &Cost::writer_mb, "2 x in flight", 2 * Megabytes(kQueuedBytes)),
            beside("reader-memory", &Cost::readers_mb, "2 x in flight", 2 * Megabytes(kReadBytes))};
  }

  // Two figures per kind of cost. The first tests the prediction: a line is fitted to all sizes but the largest, and
  // its error at the largest size is reported. The second is the cost at `size` that a line through all sizes predicts.
  std::vector<Figure> Extrapolated(double size) const {
    std::vector<Figure> figures;
    for (const Kind& kind : kKinds) {
      figures.push_back(MakeFigure(Name("error-of-line", kind.name), "%", OfRounds([&](const auto& costs) {
                                     std::vector<Measured> points = Points(costs, kind);
                                     const Measured largest = points.back();
                                     points.pop_back();
                                     return 100 * std::abs(FitLine(points).At(largest.size) / largest.cost - 1);
                                   })));
      figures.push_back(MakeFigure(Name(absl::StrCat("line-at-", size), kind.name), kind.unit,
                                   OfRounds([&](const auto& costs) { return FitLine(Points(costs, kind)).At(size); })));
    }
    return figures;
  }

 private:
  std::string Name(absl::string_view what, absl::string_view kind) const {
    return absl::StrCat("scale.", axis_.name, ".", what, ".", kind);
  }
  std::vector<double> OfRounds(const std::function<double(const std::vector<Cost>&)>& value) const {
    std::vector<double> values;
    for (const std::vector<Cost>& costs : rounds_) values.push_back(value(costs));
    return values;
  }
  std::vector<Measured> Points(const std::vector<Cost>& costs, const Kind& kind) const {
    std::vector<Measured> points;
    for (size_t i = 0; i < costs.size(); ++i) points.push_back({axis_.size(axis_.shapes[i]), costs[i].*kind.value});
    return points;
  }

  const Axis& axis_;
  const std::vector<std::vector<Cost>> rounds_;
};

void Add(std::vector<Figure>& figures, std::vector<Figure> more) {
  figures.insert(figures.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchScale(const BenchOptions& options) {
  std::vector<Figure> figures;
  for (const Axis& axis : Axes(options.quick)) {
    std::vector<std::vector<Cost>> rounds(std::min(options.rounds(), kMostRounds));
    for (std::vector<Cost>& round : rounds) {
      for (const Shape& shape : axis.shapes) {
        RR_ASSIGN_OR_RETURN(const Cost cost, Play(options, shape));
        round.push_back(cost);
      }
    }
    const Growth growth(axis, std::move(rounds));
    Add(figures, growth.Figures());
    if (axis.name == "bytes") Add(figures, growth.Bounds());
    if (axis.name == "ranks") Add(figures, growth.Extrapolated(kExtrapolatedRanks));
  }
  return figures;
}

}  // namespace routing_replay::bench
