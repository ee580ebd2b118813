#include "tests/bench/handoff/rank.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routing_replay/client.h"
#include "routing_replay/trainer/fetch.h"
#include "routing_replay/trainer/realign.h"
#include "tests/bench/common/tcp_hub.h"
#include "tests/bench/handoff/digest.h"
#include "tests/bench/handoff/rank_plan.h"
#include "tests/bench/handoff/worker.h"

namespace routing_replay::bench {
namespace {

constexpr std::chrono::seconds kTimeout(60);
constexpr uint8_t kPoison = 0x6E;

// The part of one micro-batch that does not depend on the samples' contents.
struct Batch {
  RowRange samples;
  trainer::ReplayPlan plan;
  trainer::BufferLayout layout;
  trainer::ShownRows shown;
  std::vector<uint8_t> indices;
  std::vector<trainer::RowState> states;
};

absl::StatusOr<Batch> PlanBatch(const HandoffScenario& scenario, RowRange samples, RankPlace place) {
  auto plan = PlanMicroBatch(scenario, samples, place);
  if (!plan.ok()) return plan.status();
  trainer::BufferLayout::Options options{.rows = plan->row_map.rows};
  for (const trainer::OwnedLayer& layer : plan->layers) options.ordinals.push_back(layer.ordinal);
  auto layout = trainer::BufferLayout::Create(scenario.geometry(), options);
  if (!layout.ok()) return layout.status();
  trainer::ShownRows shown(trainer::ExpandRowMap(plan->row_map));
  Batch batch{samples, *std::move(plan), *std::move(layout), std::move(shown)};
  batch.indices.resize(batch.layout.bytes(), kPoison);
  batch.states.resize(batch.layout.rows());
  return batch;
}

class Rank final : public Role {
 public:
  Rank(const HandoffScenario& scenario, int32_t rank, std::vector<Batch> batches)
      : scenario_(scenario), rank_(rank), batches_(std::move(batches)) {
    int64_t bytes = 0;
    for (const Batch& batch : batches_) bytes += batch.layout.num_layers() * batch.layout.slab_bytes(0);
    hub_array_.resize(bytes, kPoison);
  }

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    if (command[0] == "open") return Done(Open(command[1], std::atoi(command[2].c_str())));
    if (command[0] == "hub") return Done(hub_->Get(rank_, absl::MakeSpan(hub_array_)));
    if (command[0] == "service") {
      return Done(Fetch(std::atoll(command[1].c_str()), *ends_.at(command[2]).run));
    }
    if (command[0] == "digest") return command[1] == "hub" ? DigestOfHubArray() : DigestOfBuffers();
    Poison();
    return "";
  }

 private:
  static absl::StatusOr<std::string> Done(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }

  absl::Status Open(const std::string& endpoint, int hub_port) {
    auto hub = HubConnection::Connect(hub_port);
    if (!hub.ok()) return hub.status();
    hub_ = *std::move(hub);
    for (const char* transport : kTransports) {
      setenv("ROUTING_REPLAY_TRANSPORT", transport, 1);
      auto client = Client::Connect({.endpoint = endpoint});
      if (!client.ok()) return client.status();
      auto run = (*client)->JoinRun(kHandoffRun);
      if (!run.ok()) return run.status();
      ends_.emplace(transport, End{*std::move(client), *std::move(run)});
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(int64_t round, Run& run) {
    for (Batch& batch : batches_) {
      if (absl::Status status = FetchBatch(batch, round, run); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status FetchBatch(Batch& batch, int64_t round, Run& run) {
    const auto sequences = FetchSequences(scenario_, batch.samples, round);
    const trainer::IndexBuffer out{.layout = batch.layout,
                                   .rows = batch.shown,
                                   .indices = absl::MakeSpan(batch.indices),
                                   .states = absl::MakeSpan(batch.states)};
    return trainer::FetchInto(run, batch.plan, sequences, {.timeout = kTimeout}, out).status();
  }

  void Poison() {
    std::fill(hub_array_.begin(), hub_array_.end(), kPoison);
    for (Batch& batch : batches_) std::fill(batch.indices.begin(), batch.indices.end(), kPoison);
  }

  std::string DigestOfHubArray() const {
    Sha256 digest;
    digest.Add(hub_array_);
    return digest.Finish();
  }

  // Each micro-batch has a buffer with one slab per layer. Rows without a route hold filler in it, but zeros in the
  // expected digest.
  std::string DigestOfBuffers() {
    Sha256 digest;
    for (int32_t slot = 0; slot < batches_[0].layout.num_layers(); ++slot) {
      for (Batch& batch : batches_) {
        const absl::Span<uint8_t> slab = batch.layout.slab(absl::MakeSpan(batch.indices), slot);
        const int64_t row_bytes = batch.layout.row_bytes(slot);
        for (int64_t row = 0; row < batch.layout.rows(); ++row) {
          if (batch.states[row] == trainer::RowState::kReplayed) continue;
          std::fill_n(slab.begin() + row * row_bytes, row_bytes, 0);
        }
        digest.Add(slab);
      }
    }
    return digest.Finish();
  }

  const HandoffScenario scenario_;
  const int32_t rank_;
  std::vector<Batch> batches_;
  std::vector<uint8_t> hub_array_;
  std::optional<HubConnection> hub_;
  struct End {
    std::unique_ptr<Client> client;
    std::shared_ptr<Run> run;
  };
  std::map<std::string, End> ends_;  // By transport.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeRank(const HandoffScenario& scenario, int32_t rank) {
  std::vector<Batch> batches;
  for (const RowRange samples : scenario.micro_batches()) {
    absl::StatusOr<Batch> batch = PlanBatch(scenario, samples, PlaceOf(rank));
    if (!batch.ok()) return batch.status();
    batches.push_back(*std::move(batch));
  }
  return std::make_unique<Rank>(scenario, rank, std::move(batches));
}

}  // namespace routing_replay::bench
