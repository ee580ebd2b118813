// Fills a run of a server with realistic routes, to look at its pages:
//
//   report_scene ENDPOINT RUN [SAMPLES [ROWS]]
//
// The run has the shape of Qwen3-30B-A3B, 24 groups, and a new weight version after every two groups. Some samples have
// rows of two weight versions, and some have gaps. It also has the choices of a trainer, which differ from the engine's
// in some rows, more often in later layers.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "routing_replay/client.h"
#include "tests/generator/latent_generator.h"
#include "tests/generator/routes.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kGroups = 24;

// Returns the choices of a trainer's router. One choice in `one_in` has another expert, and one in 3 * `one_in` has the
// same experts in another order; `one_in` falls from layer to layer.
Routes AsTheTrainerHasIt(Routes routes, std::mt19937_64& random) {
  for (int64_t row = 0; row < routes.rows; ++row) {
    for (int32_t layer = 0; layer < routes.layers; ++layer) {
      const uint64_t one_in = 60 - layer;
      uint16_t* ids = routes.ids.data() + (row * routes.layers + layer) * routes.top_k;
      if (random() % (3 * one_in) == 0) std::swap(ids[0], ids[1]);
      if (random() % one_in != 0) continue;
      auto other = static_cast<uint16_t>(random() % routes.num_experts);
      while (std::find(ids, ids + routes.top_k, other) != ids + routes.top_k) other = (other + 1) % routes.num_experts;
      ids[routes.top_k - 1] = other;
    }
  }
  return routes;
}

absl::Status Append(Appender& appender, const Routes& routes, RowRange take, AppendOptions options) {
  const TensorDescription tensor{.dtype = DType::kU16, .shape = {routes.rows, routes.layers, routes.top_k}};
  options.row_start = take.begin;
  options.take = take;
  options.engine = "latent generator";
  return appender.Append(options, tensor,
                         {reinterpret_cast<const uint8_t*>(routes.ids.data()), routes.ids.size() * sizeof(uint16_t)});
}

absl::Status AddSample(Appender& appender, const LatentGenerator& generator, int64_t index, int64_t rows) {
  std::mt19937_64 random(index);
  const Routes routes = generator.Generate(index, rows).routes;
  const int64_t group = index % kGroups;
  AppendOptions options{.sample = "step" + std::to_string(group) + "/math-" + std::to_string(index),
                        .group = group,
                        .weight_version = 100 + group / 2};
  const bool sealed = index % 17 != 0;
  const int64_t gap = index % 9 == 4 ? rows / 8 : 0;
  const int64_t half = rows / 2;
  absl::Status status = Append(appender, routes, {0, half}, options);
  if (index % 5 == 0) ++options.weight_version;
  if (status.ok() && gap > 0) {
    NewAppend missing{.options = options};
    missing.options.row_start = half;
    missing.options.unrecorded = {{half, half + gap}};
    QueuedAppends queued;
    status = appender.AppendMany({&missing, 1}, queued);
  }
  options.seal = sealed;
  if (status.ok()) status = Append(appender, routes, {half + gap, rows}, options);
  if (!status.ok() || index % 3 == 1) return status;
  AppendOptions recorded{.sample = options.sample, .producer = Producer::kTrainer, .group = group, .seal = true};
  return Append(appender, AsTheTrainerHasIt(routes, random), {0, rows}, recorded);
}

absl::Status Play(const std::string& endpoint, const std::string& name, int64_t samples, int64_t median) {
  const LatentConfig config = Qwen3_30B_A3B();
  auto client = Client::Connect({.endpoint = endpoint});
  if (!client.ok()) return client.status();
  auto run = (*client)->OpenRun(name, Geometry::Uniform(config.layers, config.num_experts, config.top_k));
  if (!run.ok()) return run.status();
  const LatentGenerator generator(config, 1);
  const auto lengths = LognormalLengths(7, samples, static_cast<double>(median), 0.6, 24, 8 * median);
  const auto appender = (*run)->NewAppender();
  for (int64_t i = 0; i < samples; ++i) {
    if (absl::Status status = AddSample(*appender, generator, i, lengths[i] - 1); !status.ok()) return status;
  }
  return appender->Flush(std::chrono::minutes(5));
}

}  // namespace
}  // namespace routing_replay::testing

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: report_scene ENDPOINT RUN [SAMPLES [ROWS]]\n");
    return 2;
  }
  const int64_t samples = argc > 3 ? std::atoll(argv[3]) : 48;
  const int64_t median = argc > 4 ? std::atoll(argv[4]) : 120;
  const absl::Status status = routing_replay::testing::Play(argv[1], argv[2], samples, median);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
