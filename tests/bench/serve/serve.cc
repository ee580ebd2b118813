#include "tests/bench/serve/serve.h"

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/common/process_usage.h"
#include "tests/bench/common/processes.h"
#include "tests/bench/common/tcp_hub.h"
#include "tests/bench/serve/bytes_server.h"
#include "tests/bench/serve/serve_client.h"
#include "tests/bench/serve/transfer.h"
#include "tests/bench/serve/way.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::bench {
namespace {

// One pass of the transfer.
struct Pass {
  double gb_per_s = 0;
  double cpu_s_per_gb = 0;  // Summed over both ends.
};

struct WayPasses {
  std::vector<Pass> ingest, egress;
};
// By index of the message size and name of the way. Passes of the same round have the same index.
using Passes = std::map<std::pair<size_t, std::string>, WayPasses>;

constexpr const char* kWays[] = {"tcp", "openssl", "grpc", "service", "direct", "direct-tls", "appender"};
constexpr const char* kSmallWays[] = {"tcp", "appender"};

// All processes with one allocator setting.
class Setup {
 public:
  Setup(const Transfer& transfer, Tuning tuning) : transfer_(transfer), tuning_(tuning) {}

  absl::Status Start(const std::string& server_program);
  // Plays each way with each size once.
  absl::Status Play(bool counts);
  const Passes& passes() const { return passes_; }
  // Microseconds of small appends and reads by way, one value per round.
  const std::map<std::string, std::vector<double>>& small(bool puts) const { return puts ? small_puts_ : small_gets_; }

 private:
  absl::Status StartTeam(const std::string& name, bool tuned, const MakeRole& make, std::optional<Team>& team);
  absl::StatusOr<Pass> Measure(const std::string& command, const std::string& way);
  absl::Status PlayWay(size_t size, const std::string& way, bool counts);
  absl::Status PlaySmall(const std::string& way, bool counts);

  const Transfer transfer_;
  const Tuning tuning_;
  const testing::ScratchDirectory certificates_;
  quickstart::ServerProcess server_, tls_server_;
  std::optional<Team> hub_, tls_hub_, bytes_server_, client_;
  int64_t number_ = 0;  // The number of the transfer.
  Passes passes_;
  std::map<std::string, std::vector<double>> small_puts_, small_gets_;
};

absl::Status Setup::StartTeam(const std::string& name, bool tuned, const MakeRole& make, std::optional<Team>& team) {
  auto started = bench::StartTeam(name, 1, tuned, make);
  if (!started.ok()) return started.status();
  team = *std::move(started);
  return absl::OkStatus();
}

absl::Status Setup::Start(const std::string& server_program) {
  const auto files = testing::MakeTestCertificates(certificates_.path(), testing::kLocalNames);
  if (!files.ok()) return files.status();
  auto server = StartServer(server_program);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  server = StartServer(server_program, {"--tls-cert", files->cert_file, "--tls-key", files->key_file});
  if (!server.ok()) return server.status();
  tls_server_ = *std::move(server);
  absl::Status status = StartTeam(
      "hub", tuning_.server, [&](int) { return MakeTcpHub(HubSizes(transfer_), {}); }, hub_);
  const TlsFiles tls{.certificate = files->cert_file, .key = files->key_file};
  status.Update(StartTeam(
      "tls-hub", tuning_.server, [&](int) { return MakeTcpHub(HubSizes(transfer_), {}, tls); }, tls_hub_));
  status.Update(StartTeam(
      "bytes-server", tuning_.server, [](int) { return MakeBytesServer(); }, bytes_server_));
  status.Update(StartTeam(
      "client", tuning_.clients, [&](int) { return MakeServeClient(transfer_); }, client_));
  if (!status.ok()) return status;
  std::string open = absl::StrCat("open ", server_.endpoint);
  for (Team* team : {&*hub_, &*tls_hub_, &*bytes_server_}) {
    const auto port = team->Call("port");
    if (!port.ok()) return port.status();
    absl::StrAppend(&open, " ", port->front());
  }
  absl::StrAppend(&open, " ", tls_server_.endpoint, " ", files->ca_file);
  return client_->Call(open).status();
}

absl::StatusOr<Pass> Setup::Measure(const std::string& command, const std::string& way) {
  const pid_t server = way == "tcp"          ? hub_->pids()[0]
                       : way == "openssl"    ? tls_hub_->pids()[0]
                       : way == "grpc"       ? bytes_server_->pids()[0]
                       : way == "direct-tls" ? tls_server_.process->pid()
                                             : server_.process->pid();
  const pid_t pids[] = {server, client_->pids()[0]};
  const double cpu = CpuSeconds(pids);
  const auto seconds = client_->Call(command);
  if (!seconds.ok()) return seconds.status();
  const double gb = 1e-9 * static_cast<double>(transfer_.bytes());
  return Pass{gb / std::atof(seconds->front().c_str()), (CpuSeconds(pids) - cpu) / gb};
}

absl::Status Setup::PlayWay(size_t size, const std::string& way, bool counts) {
  const std::string what = absl::StrCat(way, " ", size, " ", ++number_);
  for (const std::string& command : {absl::StrCat("prepare ", what), std::string("poison")}) {
    if (absl::Status status = client_->Call(command).status(); !status.ok()) return status;
  }
  const absl::StatusOr<Pass> ingest = Measure(absl::StrCat("put ", what), way);
  if (!ingest.ok()) return ingest.status();
  const absl::StatusOr<Pass> egress = Measure(absl::StrCat("get ", what), way);
  if (!egress.ok()) return egress.status();
  if (absl::Status status = client_->Call("check").status(); !status.ok()) return status;
  if (!counts) return absl::OkStatus();
  WayPasses& passes = passes_[{size, way}];
  passes.ingest.push_back(*ingest);
  passes.egress.push_back(*egress);
  return absl::OkStatus();
}

absl::Status Setup::PlaySmall(const std::string& way, bool counts) {
  const std::string what = absl::StrCat(way, " ", ++number_);
  for (auto& [command, times] : {std::pair("small-put ", &small_puts_), std::pair("small-get ", &small_gets_)}) {
    const auto seconds = client_->Call(absl::StrCat(command, what));
    if (!seconds.ok()) return seconds.status();
    if (counts) (*times)[way].push_back(1e6 * std::atof(seconds->front().c_str()));
  }
  return absl::OkStatus();
}

absl::Status Setup::Play(bool counts) {
  for (const char* way : kSmallWays) {
    if (absl::Status status = PlaySmall(way, counts); !status.ok()) return status;
  }
  for (size_t size = 0; size < Transfer::Sizes().size(); ++size) {
    for (const char* way : kWays) {
      if (absl::Status status = PlayWay(size, way, counts); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

std::vector<double> Values(const std::vector<Pass>& passes, double Pass::*of) {
  std::vector<double> values;
  values.reserve(passes.size());
  for (const Pass& pass : passes) values.push_back(pass.*of);
  return values;
}

// Makes the figures of one direction and size.
class FigureMaker {
 public:
  FigureMaker(const Passes& passes, size_t size, std::vector<Pass> WayPasses::*direction)
      : passes_(passes), size_(size), direction_(direction) {}

  const std::vector<Pass>& Of(const std::string& way) const { return passes_.at({size_, way}).*direction_; }
  Figure Speed(const std::string& name, const std::string& way, const std::string& floor) const {
    return MakeFigure(name, "GB/s", Values(Of(way), &Pass::gb_per_s), floor, Values(Of(floor), &Pass::gb_per_s));
  }
  Figure Cpu(const std::string& name, const std::string& way, const std::string& floor) const {
    return MakeFigure(name, "s/GB", Values(Of(way), &Pass::cpu_s_per_gb), floor,
                      Values(Of(floor), &Pass::cpu_s_per_gb));
  }

 private:
  const Passes& passes_;
  const size_t size_;
  std::vector<Pass> WayPasses::*const direction_;
};

struct Direction {
  std::string name;
  std::vector<Pass> WayPasses::*passes;
};
const Direction kDirections[] = {{"ingest", &WayPasses::ingest}, {"egress", &WayPasses::egress}};

void AddFigures(const Passes& passes, std::vector<Figure>& figures) {
  const std::vector<MessageSize> sizes = Transfer::Sizes();
  for (const Direction& direction : kDirections) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const FigureMaker maker(passes, i, direction.passes);
      const std::string name = absl::StrCat("serve.", direction.name, ".", sizes[i].name);
      figures.push_back(maker.Speed(absl::StrCat(name, ".service"), "service", "tcp"));
      figures.push_back(maker.Speed(absl::StrCat(name, ".service/grpc"), "service", "grpc"));
      figures.push_back(maker.Speed(absl::StrCat(name, ".grpc"), "grpc", "tcp"));
      figures.push_back(maker.Speed(absl::StrCat(name, ".direct"), "direct", "tcp"));
      figures.push_back(maker.Speed(absl::StrCat(name, ".direct-tls"), "direct-tls", "openssl"));
      if (direction.name == "ingest")
        figures.push_back(maker.Speed(absl::StrCat(name, ".appender"), "appender", "tcp"));
      figures.push_back(maker.Cpu(absl::StrCat(name, ".direct.cpu"), "direct", "tcp"));
      figures.push_back(maker.Cpu(absl::StrCat(name, ".service.cpu"), "service", "tcp"));
      figures.push_back(maker.Cpu(absl::StrCat(name, ".grpc.cpu"), "grpc", "tcp"));
    }
  }
}

// Adds the figures of the passes without allocator tuning. Their floor is the same pass with tuning.
void AddUntuned(const Passes& untuned, const Passes& tuned, std::vector<Figure>& figures) {
  const std::vector<MessageSize> sizes = Transfer::Sizes();
  for (const Direction& direction : kDirections) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const FigureMaker without(untuned, i, direction.passes), with(tuned, i, direction.passes);
      for (const std::string way : {"service", "grpc"}) {
        const auto add = [&](const std::string& suffix, const std::string& unit, double Pass::*of) {
          figures.push_back(
              MakeFigure(absl::StrCat("serve.", direction.name, ".", sizes[i].name, ".", way, ".untuned", suffix), unit,
                         Values(without.Of(way), of), "tuned", Values(with.Of(way), of)));
        };
        add("", "GB/s", &Pass::gb_per_s);
        add(".cpu", "s/GB", &Pass::cpu_s_per_gb);
      }
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchServe(const BenchOptions& options) {
  const Transfer transfer(options.quick);
  std::vector<std::unique_ptr<Setup>> setups;
  setups.push_back(std::make_unique<Setup>(transfer, options.tuning));
  if (options.beside_untuned) setups.push_back(std::make_unique<Setup>(transfer, kUntuned));
  for (const auto& setup : setups) {
    if (absl::Status status = setup->Start(options.server); !status.ok()) return status;
  }
  for (int i = -kWarmUpRounds; i < options.rounds(); ++i) {
    for (const auto& setup : setups) {
      if (absl::Status status = setup->Play(i >= 0); !status.ok()) return status;
    }
  }
  std::vector<Figure> figures;
  AddFigures(setups[0]->passes(), figures);
  for (const bool puts : {true, false}) {
    const auto& times = setups[0]->small(puts);
    figures.push_back(MakeFigure(puts ? "serve.small.append" : "serve.small.read", "us", times.at("appender"),
                                 "empty TCP", times.at("tcp")));
  }
  if (options.beside_untuned) AddUntuned(setups[1]->passes(), setups[0]->passes(), figures);
  return figures;
}

}  // namespace routing_replay::bench
