#include "tests/bench/handoff/rounds.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

using Of = std::function<double(const Round&)>;

std::vector<double> Values(const std::vector<Round>& rounds, const Of& of) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(of(round));
  return values;
}

}  // namespace

std::vector<Figure> HandoffFigures(const std::string& name, const std::vector<Round>& rounds,
                                   const std::string& floor_name, const std::vector<Round>& floor) {
  std::vector<Figure> figures;
  const auto add = [&](const std::string& what, const std::string& unit, const Of& of) {
    figures.push_back(
        MakeFigure(absl::StrCat(name, ".", what), unit, Values(rounds, of), floor_name, Values(floor, of)));
  };
  add("wall", "ms", [](const Round& r) { return 1e3 * r.wall_s(); });
  add("ingest", "ms", [](const Round& r) { return 1e3 * r.ingest_s; });
  add("fetch", "ms", [](const Round& r) { return 1e3 * r.fetch_s; });
  add("cpu", "ms", [](const Round& r) { return 1e3 * r.cpu_s; });
  if (rounds[0].moved > 0) add("moved/needed", "x", [](const Round& r) { return r.moved; });
  figures.push_back(
      MakeFigure(absl::StrCat(name, ".extra-memory"), "MB", Values(rounds, [](const Round& r) { return r.peak_mb; })));
  return figures;
}

}  // namespace routing_replay::bench
