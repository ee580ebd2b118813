#include "tests/bench/handoff/worker.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/client.h"
#include "tests/bench/common/tcp_hub.h"
#include "tests/bench/handoff/rank_plan.h"

namespace routing_replay::bench {
namespace {

constexpr std::chrono::seconds kWorkerTimeout(60);

// One sample as the engine holds it.
struct Held {
  int32_t index = 0;
  int64_t tokens = 0;
  std::vector<int64_t> shape;
  std::vector<uint8_t> u8;
  std::vector<int32_t> i32;

  absl::Span<const uint8_t> bytes(DType dtype) const {
    if (dtype == DType::kU8) return u8;
    return {reinterpret_cast<const uint8_t*>(i32.data()), i32.size() * sizeof(int32_t)};
  }
};

class Worker final : public Role {
 public:
  Worker(const HandoffScenario& scenario, int32_t worker) : geometry_(scenario.geometry()), worker_(worker) {
    for (const int32_t i : scenario.SamplesOf(worker)) {
      Held held{i, scenario.tokens(i), {scenario.rows(i), geometry_.num_moe_layers(), geometry_.layer(0).top_k}};
      held.u8 = scenario.MakeSample(i);
      held.i32.assign(held.u8.begin(), held.u8.end());
      held_.push_back(std::move(held));
    }
  }

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    absl::Status status;
    if (command[0] == "open") status = Open(command[1], std::atoi(command[2].c_str()));
    if (command[0] == "hub") status = PutIntoHub();
    if (command[0] == "u8") status = Append(DType::kU8, std::atoll(command[1].c_str()), command[2]);
    if (command[0] == "i32") status = Append(DType::kI32, std::atoll(command[1].c_str()), command[2]);
    if (!status.ok()) return status;
    int64_t bytes = 0;
    for (const auto& [transport, end] : ends_) bytes += end.appender->metrics().payload_bytes;
    return absl::StrCat(bytes);
  }

 private:
  absl::Status Open(const std::string& endpoint, int hub_port) {
    auto hub = HubConnection::Connect(hub_port);
    if (!hub.ok()) return hub.status();
    hub_ = *std::move(hub);
    for (const char* transport : kTransports) {
      setenv("ROUTING_REPLAY_TRANSPORT", transport, 1);
      auto client = Client::Connect({.endpoint = endpoint});
      if (!client.ok()) return client.status();
      auto run = (*client)->OpenRun(kHandoffRun, geometry_);
      if (!run.ok()) return run.status();
      auto appender = (*run)->NewAppender();
      ends_.emplace(transport, End{*std::move(client), *std::move(run), std::move(appender)});
    }
    return absl::OkStatus();
  }

  absl::Status PutIntoHub() {
    for (const Held& sample : held_) {
      if (absl::Status status = hub_->Put(sample.index, sample.u8); !status.ok()) return status;
    }
    return hub_->Sync();
  }

  absl::Status Append(DType dtype, int64_t round, const std::string& transport) {
    End& end = ends_.at(transport);
    if (worker_ == 0) {
      if (const auto released = end.run->ReleaseGroups(0, round); !released.ok()) return released.status();
    }
    for (const Held& sample : held_) {
      const absl::Status status = end.appender->Append(
          {.sample = SampleId(round, sample.index), .group = round, .seal_num_tokens = sample.tokens},
          {.dtype = dtype, .shape = sample.shape}, sample.bytes(dtype));
      if (!status.ok()) return status;
    }
    return end.appender->Flush(kWorkerTimeout);
  }

  const Geometry geometry_;
  const int32_t worker_;
  std::vector<Held> held_;
  std::optional<HubConnection> hub_;
  struct End {
    std::unique_ptr<Client> client;
    std::shared_ptr<Run> run;
    std::unique_ptr<Appender> appender;
  };
  std::map<std::string, End> ends_;  // By transport.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeWorker(const HandoffScenario& scenario, int32_t worker) {
  return std::make_unique<Worker>(scenario, worker);
}

}  // namespace routing_replay::bench
