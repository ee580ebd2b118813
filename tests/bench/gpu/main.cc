// gpu_bench [--json FILE] [--rounds N] [--launches N] [--rows N]: measures the kernels on this machine's GPU, each
// beside an empty launch and a copy of the bytes that it must move at least, interleaved in the same rounds. Times are
// microseconds per call, averaged over `launches` consecutive calls on a stream. Exit status 77 without a GPU.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>

#include "tests/bench/common/figure.h"
#include "tests/bench/gpu/empty.h"
#include "tests/bench/gpu/work.h"
#include "tests/support/cuda/device_array.h"
#include "tests/support/cuda/need_device.h"

namespace routing_replay::bench {
namespace {

using testing::CheckCuda;
using testing::DeviceArray;

struct Options {
  std::string json;
  int rounds = 15;
  int launches = 200;
  int64_t rows = 8192;
};

class Timer {
 public:
  explicit Timer(int launches) : launches_(launches) {
    CheckCuda(cudaStreamCreate(&stream_), "cudaStreamCreate");
    CheckCuda(cudaEventCreate(&begin_), "cudaEventCreate");
    CheckCuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  // Microseconds per call.
  double Time(const std::function<void(CUstream_st*)>& launch) const {
    CheckCuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < launches_; ++i) launch(stream_);
    CheckCuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    CheckCuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * milliseconds / launches_;
  }

 private:
  int launches_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Measures the kernel, a copy of its bytes and an empty launch in turn. A copy both reads and writes each byte, so half
// of the bytes are copied. If the case launches two kernels, its floor is two empty launches.
void Measure(const GpuWork& work, const Options& options, const Timer& timer, std::vector<Figure>& figures) {
  const int64_t copied = work.minimal_bytes / 2;
  const DeviceArray<uint8_t> from(static_cast<size_t>(copied)), to(static_cast<size_t>(copied));
  const auto copy = [&](CUstream_st* stream) {
    CheckCuda(cudaMemcpyAsync(to.data(), from.data(), to.size(), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  };
  const int kernels = work.name.ends_with("forward_backward") ? 2 : 1;
  const auto empty = [&](CUstream_st* stream) {
    for (int i = 0; i < kernels; ++i) LaunchEmpty(stream);
  };
  std::vector<double> times, copies, launches, floors;
  constexpr int kWarmUpRounds = 2;
  for (int round = -kWarmUpRounds; round < options.rounds; ++round) {
    const double time = timer.Time(work.launch), byte_floor = timer.Time(copy), launch_floor = timer.Time(empty);
    if (round < 0) continue;
    times.push_back(time);
    copies.push_back(byte_floor);
    launches.push_back(launch_floor);
    floors.push_back(std::max(byte_floor, launch_floor));
  }
  figures.push_back(MakeFigure(work.name, "us", times, "max(launch, copy)", floors));
  figures.push_back(MakeFigure(work.name + ".copy", "us", copies));
  figures.push_back(MakeFigure(work.name + ".launch", "us", launches));
}

nlohmann::json DescribeGpu(const Options& options) {
  cudaDeviceProp properties;
  CheckCuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  return {{"gpu", properties.name}, {"driver", driver},         {"cuda", runtime},
          {"date", date},           {"rounds", options.rounds}, {"rows", options.rows}};
}

int Run(const Options& options) {
  const Timer timer(options.launches);
  std::vector<Figure> figures;
  for (const GpuWork& work : MakeGpuWork(options.rows)) Measure(work, options, timer, figures);
  std::cout << Table(figures);
  if (options.json.empty()) return 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Figure& figure : figures) list.push_back(ToJson(figure));
  std::ofstream out(options.json);
  out << nlohmann::json{{"figures", list}, {"host", DescribeGpu(options)}}.dump(2) << "\n";
  return out.good() ? 0 : 1;
}

}  // namespace
}  // namespace routing_replay::bench

int main(int argc, char** argv) {
  routing_replay::bench::Options options;
  CLI::App app("The kernels beside an empty launch and a copy of their bytes");
  app.add_option("--json", options.json, "file for the figures");
  app.add_option("--rounds", options.rounds, "measured rounds, after a warm-up")->check(CLI::Range(1, 1000));
  app.add_option("--launches", options.launches, "calls per round")->check(CLI::Range(1, 100000));
  app.add_option("--rows", options.rows, "rows, a multiple of 4")->check(CLI::Range(4, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  routing_replay::testing::NeedDevice();
  return routing_replay::bench::Run(options);
}
