// The program rrctl: the commands of client/rrctl, and the trainer's commands plan and diagnose, which are about
// layouts. trainer_plugin/layout/plan_json.h describes the answers of these two.
#include <grpc/support/log.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/rrctl/application.h"
#include "client/rrctl/rows.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::trainer {
namespace {

using client::Application;
using client::Document;
using client::Layout;
using client::Session;

std::string StandardInput() { return std::string(std::istreambuf_iterator<char>(std::cin), {}); }

void AddPlan(Application& application) {
  application.Add(
      "plan", "lay out a micro-batch: its description as JSON on standard input, the plan as JSON on standard output",
      [](Session& session) {
        RR_ASSIGN_OR_RETURN(const auto plan, PlanFromJson(StandardInput()));
        session.output().Write(absl::StrCat(plan, "\n"));
        return session.output().Flush();
      });
}

struct DiagnoseOptions {
  std::string run;
  // A .npy file with what the routers replayed: [local rows, the rank's MoE layers, K].
  std::string ids;
  Producer producer = Producer::kRollout;  // The producer whose rows the trainer replayed.
};

absl::StatusOr<RouteIds> IdsOfFile(const std::string& path) {
  RR_ASSIGN_OR_RETURN(const auto bytes, client::ReadFile(path, std::cin));
  RR_ASSIGN_OR_RETURN(const auto view,
                      OpenTensor({.encoding = Encoding::kNpy}, bytes, static_cast<int64_t>(bytes.size())));
  RouteIds ids{view.rows, static_cast<int32_t>(view.layers), static_cast<int32_t>(view.top_k), {}};
  ids.ids.reserve(view.rows * view.row_elements());
  for (int64_t i = 0; i < view.rows * view.row_elements(); ++i) {
    ids.ids.push_back(static_cast<int32_t>(ElementAt(view.dtype, view.elements.data(), i)));
  }
  return ids;
}

// Converts the rows of a sample, for all MoE layers. Rows without a route, and slots beyond a layer's K, become -1.
RouteIds ToRouteIds(const Geometry& geometry, const SampleRows& sample) {
  const int32_t top_k = geometry.max_top_k();
  RouteIds ids{sample.rows.empty() ? 0 : sample.rows.back().end, geometry.num_moe_layers(), top_k, {}};
  ids.ids.assign(*geometry.array_ids(ids.rows), -1);
  int64_t slot = 0;
  for (const RowRange range : sample.rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++slot) {
      for (int32_t layer = 0; layer < ids.layers; ++layer) {
        const int32_t k = geometry.layer(layer).top_k;
        std::copy_n(sample.layers[layer].begin() + slot * k, k, ids.ids.begin() + (row * ids.layers + layer) * top_k);
      }
    }
  }
  return ids;
}

absl::StatusOr<std::vector<RouteIds>> RecordedIds(Client& client, const DiagnoseOptions& options,
                                                  const DescribedPlan& described) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  const Geometry& geometry = run->geometry();
  if (!(geometry == described.geometry)) {
    return Invalid("geometry", absl::StrCat("is not that of run ", options.run, ", ", geometry.DebugString()));
  }
  std::vector<RouteIds> recorded;
  for (size_t i = 0; i < described.samples.size(); ++i) {
    const std::string& name = described.samples[i];
    if (name.empty()) return Invalid("micro_batch.sequences", absl::StrCat("sequence ", i, " names no sample"));
    RR_ASSIGN_OR_RETURN(const auto sample, client::ReadSample(*run, name, options.producer));
    recorded.push_back(ToRouteIds(geometry, sample));
  }
  return recorded;
}

// Finds the known mistake that explains the ids in the file, given the recorded rows of the samples in the description.
absl::StatusOr<Document> DiagnoseReplayedIds(Client& client, const DiagnoseOptions& options,
                                             absl::string_view description) {
  RR_ASSIGN_OR_RETURN(const auto described, DescribedPlanFromJson(description));
  RR_ASSIGN_OR_RETURN(const auto seen, IdsOfFile(options.ids));
  const int32_t top_k = described.geometry.max_top_k();
  if (seen.top_k != top_k) {
    return Invalid("observed.ids", absl::StrCat("has K = ", seen.top_k, ", but the geometry has K = ", top_k));
  }
  RR_ASSIGN_OR_RETURN(const auto recorded, RecordedIds(client, options, described));
  RR_ASSIGN_OR_RETURN(const auto judged, JudgeIds(described, recorded, seen, true));
  return judged["explanations"];
}

void AddDiagnose(Application& application) {
  const auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* diagnose = application.Add(
      "diagnose",
      "find the known mistake that explains the routes that a rank replayed\n"
      "It reads the description of a plan from standard input, and what the rank's routers replayed from a file.",
      [options](Session& session) {
        const std::string description = StandardInput();
        return session.Ask([&](Client& client) { return DiagnoseReplayedIds(client, *options, description); },
                           Layout::kColumns);
      });
  diagnose->add_option("RUN", options->run, "name of the run that was replayed")->required();
  diagnose
      ->add_option("--ids", options->ids,
                   "file with what the routers replayed: [local rows, MoE layers of the rank, K], .npy")
      ->type_name("FILE")
      ->required();
  client::AddProducer(diagnose, options->producer);
}

}  // namespace
}  // namespace routing_replay::trainer

int main(int argc, char** argv) {
  // A failure is reported in one line. gRPC's own log lines are shown only if its environment variable is set.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  routing_replay::client::Application application;
  routing_replay::trainer::AddPlan(application);
  routing_replay::trainer::AddDiagnose(application);
  return application.Main({argv + 1, argv + argc});
}
