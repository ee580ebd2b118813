// routing-replay-bench: every benchmark of this repository, each beside its floor in the same run. README.md has the
// figures and says how to read them.
#include <hwy/highway.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/host.h"
#include "tests/bench/common/options.h"
#include "tests/bench/disk/disk.h"
#include "tests/bench/handoff/handoff.h"
#include "tests/bench/index/index.h"
#include "tests/bench/plan/plan.h"
#include "tests/bench/scale/scale.h"
#include "tests/bench/serve/serve.h"
#include "tests/bench/spill/spill.h"
#include "tests/bench/store/store_bench.h"
#include "tests/bench/wire/wire.h"

namespace routing_replay::bench {
namespace {

constexpr int kExitFailed = 1;
constexpr char kBoth[] = "both";

struct Flags {
  BenchOptions options;
  std::string allocator = "tuned";
  std::string network = "auto";
  std::string instructions;
  std::string json;
};

struct Benchmark {
  std::function<absl::StatusOr<std::vector<Figure>>(const BenchOptions&)> run;
  bool compares_allocators = false;
};

absl::Status EnterNetwork(const std::string& network) {
  if (network == "host") return absl::OkStatus();
  const absl::Status entered = EnterOwnNetwork();
  return network == "auto" && absl::IsFailedPrecondition(entered) ? absl::OkStatus() : entered;
}

// Disables all instruction sets that are better than the named one, for this process and its children.
absl::Status LimitInstructions(const std::string& name) {
  std::vector<std::string> names;
  for (int64_t targets = hwy::SupportedTargets() & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    names.push_back(hwy::TargetName(target));
    if (names.back() != name) continue;
    hwy::DisableTargets(target - 1);  // Better instruction sets have lower bits.
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--instructions must be one of ", absl::StrJoin(names, ", "), " here, got ", name));
}

void PrintHost(const Host& host, const BenchOptions& options) {
  std::cout << host.cores << " x " << host.cpu << ", Linux " << host.kernel << ", "
            << (host.own_network ? "own" : "the host's") << " network, " << host.congestion_control << ", allocator: "
            << "server " << (options.tuning.server ? "tuned" : "default") << ", clients "
            << (options.tuning.clients ? "tuned" : "default") << (options.beside_untuned ? ", beside default" : "")
            << "\n"
            << std::flush;
}

absl::Status WriteJson(const std::string& path, const std::vector<Figure>& figures, const Host& host,
                       const Flags& flags) {
  nlohmann::json json{{"figures", nlohmann::json::array()}, {"host", host}};
  json["host"]["allocator"] = flags.allocator;
  if (!flags.instructions.empty()) json["host"]["instructions"] = flags.instructions;
  json["host"]["repetitions"] = flags.options.rounds();
  for (const Figure& figure : figures) json["figures"].push_back(ToJson(figure));
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat(path, " cannot be written"));
}

Tuning TuningOf(const std::string& allocator) {
  const bool all = allocator == "tuned" || allocator == kBoth;
  return {.server = all || allocator == "server", .clients = all || allocator == "clients"};
}

absl::Status Run(Flags& flags, const Benchmark& benchmark) {
  flags.options.tuning = TuningOf(flags.allocator);
  flags.options.beside_untuned = flags.allocator == kBoth;
  if (flags.options.beside_untuned && !benchmark.compares_allocators) {
    return absl::InvalidArgumentError("--allocator both: this benchmark runs in one process, with one allocator");
  }
  if (absl::Status status = EnterNetwork(flags.network); !status.ok()) return status;
  if (!flags.instructions.empty()) {
    if (absl::Status status = LimitInstructions(flags.instructions); !status.ok()) return status;
  }
  const Host host = DescribeHost();
  PrintHost(host, flags.options);
  const absl::StatusOr<std::vector<Figure>> figures = benchmark.run(flags.options);
  if (!figures.ok()) return figures.status();
  std::cout << Table(*figures);
  return flags.json.empty() ? absl::OkStatus() : WriteJson(flags.json, *figures, host, flags);
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.options.server = std::filesystem::read_symlink("/proc/self/exe").replace_filename("routing-replay-server");
  CLI::App app("Measures routing-replay beside its floors, in interleaved rounds");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--server", flags.options.server, "Path of routing-replay-server")->capture_default_str();
  app.add_option("--repetitions", flags.options.repetitions, "Measured rounds, after a warm-up")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--quick", flags.options.quick, "Few and small rounds, only to see that it runs");
  app.add_option("--allocator", flags.allocator,
                 "Which processes tune glibc's allocator: tuned (all), default (none), server, clients, "
                 "both (measures tuned and default in the same rounds)")
      ->capture_default_str()
      ->check(CLI::IsMember({"tuned", "default", "server", "clients", kBoth}));
  app.add_option("--network", flags.network, "own: a private loopback interface with reno; host: the host's; auto")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "own", "host"}));
  app.add_option(
      "--instructions", flags.instructions,
      "The best instruction set to use of those that the CPU has, e.g. AVX2 on a CPU with AVX-512; the server, "
      "which handles bytes alone, has all");
  app.add_option("--python", flags.options.python,
                 "Path of an interpreter that finds both packages: `handoff` also with Python at both ends");
  app.add_option("--json", flags.json, "Also write the figures to this file");
  Benchmark benchmark;
  const auto add = [&](const std::string& name, const std::string& help, const Benchmark& b) {
    app.add_subcommand(name, help)->callback([&, b] { benchmark = b; });
  };
  add("disk", "Synced appends and reads over a disk that takes 10 ms to sync", {BenchDisk, false});
  add("handoff", "The standard hand-off from workers to ranks, beside plain TCP", {BenchHandoff, true});
  add("index", "Memory and time of a million small samples in a store", {BenchIndex, false});
  add("plan", "Replay plans of a micro-batch of 2^20 tokens", {BenchPlan, false});
  add("scale", "How costs grow with samples, bytes, layers and ranks", {BenchScale, false});
  add("serve", "The server's ingest and egress, beside plain TCP and plain gRPC", {BenchServe, true});
  add("spill", "Spilled blocks: RocksDB beside segment files", {BenchSpill, false});
  add("store", "Every store beside the engine that it is built on, without gRPC", {BenchStore, false});
  add("wire", "The codecs beside memcpy, and what the wire takes beside the ids", {BenchWire, false});
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  const absl::Status status = Run(flags, benchmark);
  if (status.ok()) return 0;
  std::cerr << "routing-replay-bench: " << status << "\n";
  return kExitFailed;
}

}  // namespace
}  // namespace routing_replay::bench

int main(int argc, char** argv) { return routing_replay::bench::Main(argc, argv); }
