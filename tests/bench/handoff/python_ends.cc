#include "tests/bench/handoff/python_ends.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

constexpr char kTuned[] =
    "glibc.malloc.trim_threshold=2147483647:glibc.malloc.mmap_threshold=33554432:glibc.malloc.mxfast=0:"
    "glibc.malloc.top_pad=4194304";

nlohmann::json Describe(const HandoffScenario& scenario) {
  const Geometry& geometry = scenario.geometry();
  nlohmann::json json{{"num_layers", geometry.num_layers()},
                      {"num_experts", geometry.layer(0).num_experts},
                      {"top_k", geometry.layer(0).top_k},
                      {"workers", kWorkers},
                      {"tp", kTp},
                      {"cp", kCp},
                      {"pp", kPp},
                      {"sample_pad_multiple", kSamplePadMultiple}};
  for (int32_t i = 0; i < scenario.samples(); ++i) json["tokens"].push_back(scenario.tokens(i));
  for (const RowRange& batch : scenario.micro_batches()) json["micro_batches"].push_back({batch.begin, batch.end});
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    const RankPlace place = PlaceOf(rank);
    json["places"].push_back({{"tp", place.tp}, {"cp", place.cp}, {"pp", place.pp}});
  }
  return json;
}

absl::Status WriteScenario(const std::string& directory, const HandoffScenario& scenario) {
  std::ofstream description(absl::StrCat(directory, "/scenario.json"));
  description << Describe(scenario).dump();
  description.close();
  bool good = static_cast<bool>(description);
  for (int32_t i = 0; i < scenario.samples(); ++i) {
    const std::vector<uint8_t> ids = scenario.MakeSample(i);
    std::ofstream file(absl::StrCat(directory, "/", i), std::ios::binary);
    file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size()));
    file.close();
    good = good && file;
  }
  return good ? absl::OkStatus() : absl::InternalError(absl::StrCat("cannot write into ", directory));
}

}  // namespace

absl::StatusOr<PythonEnds> StartPythonEnds(const std::string& python, const HandoffScenario& scenario, bool tuned) {
  std::string directory = (std::filesystem::temp_directory_path() / "routing-replay-bench.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot make ", directory));
  const absl::Cleanup remove = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  };
  if (absl::Status status = WriteScenario(directory, scenario); !status.ok()) return status;
  const auto start = [&](const std::string& kind, int count) {
    std::vector<std::vector<std::string>> programs;
    for (int i = 0; i < count; ++i) programs.push_back({python, RR_PYTHON_END, kind, absl::StrCat(i), directory});
    return Team::Spawn(absl::StrCat("python ", kind), programs, {{"GLIBC_TUNABLES", tuned ? kTuned : ""}});
  };
  auto workers = start("worker", kWorkers);
  if (!workers.ok()) return workers.status();
  auto ranks = start("rank", kRanks);
  if (!ranks.ok()) return ranks.status();
  PythonEnds ends{*std::move(workers), *std::move(ranks)};
  for (Team* team : {&ends.workers, &ends.ranks}) {
    if (const auto ready = team->Call("ready"); !ready.ok()) return ready.status();
  }
  return ends;
}

}  // namespace routing_replay::bench
