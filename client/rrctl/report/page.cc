#include "client/rrctl/report/page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rrctl/report/chart.h"
#include "client/rrctl/report/html.h"
#include "client/rrctl/report/plot.h"
#include "client/rrctl/report/template.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

constexpr size_t kTicks = 5;
constexpr size_t kLayerTicks = 7;
constexpr size_t kShownDamaged = 5;

std::optional<double> Number(const Document& value) {
  if (!value.is_number()) return std::nullopt;
  return value.get<double>();
}

std::string Count(const Document& value) { return HumanCount(value.get<int64_t>()); }
std::string Samples(int64_t count) { return absl::StrCat(HumanCount(count), count == 1 ? " sample" : " samples"); }
std::string Fixed(const Document& value) {
  return value.is_null() ? "–" : absl::StrFormat("%.3f", value.get<double>());
}
std::string Percent(double part, double whole) {
  if (whole <= 0) return "–";
  const double percent = 100 * part / whole;
  return percent > 0 && percent < 0.01 ? "< 0.01 %" : absl::StrFormat("%.2f %%", percent);
}

// The middle one, the lower of two.
std::optional<double> Median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> Known(const Document& objects, const char* key) {
  std::vector<double> values;
  for (const Document& object : objects) {
    if (const auto value = Number(object[key])) values.push_back(*value);
  }
  return values;
}

std::string LayerLabel(const Document& report, size_t row) { return report["load"][row]["layer"].dump(); }

std::vector<Tick> LayerTicks(const Document& report) {
  return CellTicks(report["load"].size(), kLayerTicks, [&](size_t row) { return LayerLabel(report, row); });
}

// One map of all experts as they are numbered, and one in which each layer's experts are sorted by their load.
std::string LoadCharts(const Document& report) {
  const Document& load = report["load"];
  if (load.empty() || load[0]["rows"] == 0) return R"(<p class="quiet">There are no recorded rows.</p>)";
  size_t experts = 0;
  std::vector<std::vector<int64_t>> counts;
  std::vector<double> means;
  for (const Document& layer : load) {
    counts.push_back(layer["counts"].get<std::vector<int64_t>>());
    experts = std::max(experts, counts.back().size());
    const double choices = std::accumulate(counts.back().begin(), counts.back().end(), 0.0);
    means.push_back(choices / static_cast<double>(counts.back().size()));
  }
  const auto step_of = [&](int row, int column) -> std::optional<int> {
    if (static_cast<size_t>(column) >= counts[row].size()) return 0;
    const int64_t count = counts[row][column];
    if (count == 0) return std::nullopt;
    return RatioStep(static_cast<double>(count) / means[row]);
  };
  const int rows = static_cast<int>(load.size()), columns = static_cast<int>(experts);
  Chart chart{.name = "By expert",
              .tell = "load",
              .rows = load.size(),
              .columns = experts,
              .height = std::clamp(rows * 9, 160, 560),
              .heat = true,
              .y = LayerTicks(report),
              .x = CellTicks(experts, kTicks, [](size_t expert) { return absl::StrCat(expert); }),
              .x_name = "expert (rows of the map: decoder layers)",
              .svg = HeatMap(rows, columns, step_of)};
  const std::string by_expert = ChartHtml(chart);
  for (std::vector<int64_t>& layer : counts) std::sort(layer.begin(), layer.end(), std::greater<>());
  chart.name = "Each layer's experts from the busiest to the least used";
  chart.tell = "load_sorted";
  chart.height = std::clamp(rows * 4, 110, 260);
  chart.x = CellTicks(experts, kTicks, [](size_t place) { return absl::StrCat(place + 1); });
  chart.x_name = "place in its layer";
  chart.svg = HeatMap(rows, columns, step_of);
  return by_expert + ChartHtml(chart);
}

// The least entropy of any part and layer, rounded down, so that the colours have a scale.
double EntropyFloor(const Document& parts) {
  double least = 1;
  for (const Document& part : parts) {
    for (const double value : Known(part["layers"], "entropy")) least = std::min(least, value);
  }
  return std::max(0.0, std::min(0.95, std::floor(least * 20) / 20));
}

// Groups or weight versions: the balance of each, and the entropy of each layer in each.
std::string BalanceCharts(const Document& report, const Document& parts, const std::string& tell,
                          const std::string& entropy_tell, const std::string& x_name,
                          const std::function<std::string(size_t part)>& label) {
  Line low{"edge", {}}, high{"edge", {}}, middle{"cool", {}};
  double most = 1;
  for (const Document& part : parts) {
    const std::vector<double> values = Known(part["layers"], "max_to_mean");
    const bool any = !values.empty();
    low.values.push_back(any ? std::optional(*std::min_element(values.begin(), values.end())) : std::nullopt);
    high.values.push_back(any ? std::optional(*std::max_element(values.begin(), values.end())) : std::nullopt);
    middle.values.push_back(Median(values));
    most = std::max(most, high.values.back().value_or(1));
  }
  most = std::max(2.0, RoundUp(most));
  const std::vector<Tick> ticks = CellTicks(parts.size(), kTicks, label);
  const double least = EntropyFloor(parts);
  const size_t layers = report["load"].size();
  const auto step_of = [&](int row, int column) -> std::optional<int> {
    const auto entropy = Number(parts[column]["layers"][row]["entropy"]);
    if (!entropy) return std::nullopt;
    return LinearStep(*entropy, least, 1);
  };
  return absl::StrCat(ChartHtml({.name = "Busiest expert over the mean",
                                 .tell = tell,
                                 .columns = parts.size(),
                                 .height = 130,
                                 .y = ScaleTicks(0, most),
                                 .x = ticks,
                                 .svg = Lines({low, high, middle}, 0, most, /*band=*/true)}),
                      ChartHtml({.name = "Entropy by layer",
                                 .tell = entropy_tell,
                                 .rows = layers,
                                 .columns = parts.size(),
                                 .height = std::clamp(static_cast<int>(layers) * 6, 110, 230),
                                 .heat = true,
                                 .style = " even",
                                 .y = LayerTicks(report),
                                 .x = ticks,
                                 .x_name = x_name,
                                 .svg = HeatMap(static_cast<int>(layers), static_cast<int>(parts.size()), step_of)}));
}

std::string GroupLabel(const Document& group) {
  const auto begin = group["begin"].get<int64_t>(), end = group["end"].get<int64_t>();
  return end - begin <= 1 ? absl::StrCat(begin) : absl::StrCat(begin, "–", end - 1);
}

Chart OverLayers(const Document& report, const std::string& tell, double most, const std::vector<Line>& lines) {
  const size_t layers = report["load"].size();
  return {.tell = tell,
          .columns = layers,
          .height = 190,
          .y = ScaleTicks(0, most),
          .x = CellTicks(layers, kLayerTicks, [&](size_t row) { return LayerLabel(report, row); }),
          .x_name = "decoder layer",
          .svg = Lines(lines, 0, most, /*band=*/false)};
}

std::string NeighbourChart(const Document& report) {
  Line shared{"calm", {}}, expected{"thin dash", {}};
  double most = 0;
  for (const Document& layer : report["neighbours"]) {
    shared.values.push_back(Number(layer["shared"]));
    expected.values.push_back(Number(layer["expected"]));
    most = std::max({most, shared.values.back().value_or(0), expected.values.back().value_or(0)});
  }
  return ChartHtml(OverLayers(report, "neighbours", std::min(1.0, RoundUp(most)), {expected, shared}));
}

std::string MismatchChart(const Document& report) {
  const Document& mismatch = report["mismatch"];
  if (mismatch.is_null()) return R"(<p class="quiet">Nothing to compare.</p>)";
  struct Part {
    const char* key;
    const char* style;
    const char* words;
  };
  static constexpr Part kParts[] = {{"other_experts", "warm", "other experts"},
                                    {"no_common_expert", "cool", "no expert in common"},
                                    {"order_only", "thin", "the same experts in another order"}};
  std::vector<Line> lines;
  std::string legend;
  double most = 0;
  for (const Part& part : kParts) {
    Line& line = lines.emplace_back(Line{part.style, {}});
    for (const Document& layer : mismatch["layers"]) {
      const auto choices = layer["choices"].get<double>();
      line.values.push_back(choices > 0 ? std::optional(100 * layer[part.key].get<double>() / choices) : std::nullopt);
      most = std::max(most, line.values.back().value_or(0));
    }
    absl::StrAppend(&legend, R"(<span><i class="ln )", part.style, R"("></i>)", part.words, "</span>");
  }
  std::reverse(lines.begin(), lines.end());  // What matters most is drawn last.
  return absl::StrCat(ChartHtml(OverLayers(report, "mismatch", std::min(100.0, RoundUp(most)), lines)),
                      R"(<div class="legend">)", legend, "<span>percent of choices</span></div>");
}

std::string MismatchCaption(const Document& report) {
  const Document& mismatch = report["mismatch"];
  if (mismatch.is_null())
    return "The trainer recorded no rows of this run (producer TRAINER), so there is nothing to compare.";
  return absl::StrCat(
      "A choice is what one row chose in one layer. Percent of the choices that the trainer recorded otherwise "
      "than the rollout engine, by layer, over the ",
      Count(mismatch["rows"]), " rows that both have of ", Samples(mismatch["samples"].get<int64_t>()), ".");
}

std::string LengthChart(const Document& report) {
  const Document& lengths = report["lengths"];
  std::vector<Bar> bars;
  double most = 0;
  for (const Document& count : lengths["counts"]) {
    bars.push_back({{count.get<double>()}});
    most = std::max(most, count.get<double>());
  }
  if (bars.empty()) return R"(<p class="quiet">There are no samples.</p>)";
  most = std::max(2.0, RoundUp(most));
  return ChartHtml({.tell = "lengths",
                    .columns = bars.size(),
                    .height = 190,
                    .y = ScaleTicks(0, most),
                    .x = CellTicks(bars.size(), kTicks,
                                   [&](size_t bar) {
                                     return HumanCount(lengths["begin"].get<int64_t>() +
                                                       static_cast<int64_t>(bar) * lengths["width"].get<int64_t>());
                                   }),
                    .x_name = "tokens (where each bar begins)",
                    .svg = Bars(bars, {"cool"}, most)});
}

std::string LengthFacts(const Document& report) {
  const Document& lengths = report["lengths"];
  if (lengths["median"].is_null()) return "";
  return absl::StrCat("Median ", Count(lengths["median"]), ", 99th percentile ", Count(lengths["p99"]), ", longest ",
                      Count(lengths["longest"]), " tokens.");
}

// Rows of cells that are HTML already; `head` is plain.
std::string Table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string html = "<table><thead><tr>";
  for (const std::string& name : head) absl::StrAppend(&html, "<th>", HtmlText(name), "</th>");
  html += "</tr></thead><tbody>";
  for (const auto& row : rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      absl::StrAppend(&html, i == 0 ? R"(<td class="id">)" : "<td>", row[i], "</td>");
    html += "</tr>";
  }
  return html + "</tbody></table>";
}

std::string MissingSamples(const Document& report) {
  std::vector<std::vector<std::string>> rows;
  for (const Document& sample : report["missing"]) {
    rows.push_back({HtmlText(sample["sample"].get<std::string>()), sample["group"].dump(), Count(sample["rows"]),
                    Count(sample["unrecorded_rows"]), Count(sample["lost_rows"])});
  }
  const auto all = report["missing_samples"].get<int64_t>();
  std::string note = absl::StrCat(HumanCount(all), all == 1 ? " sample misses rows" : " samples miss rows");
  if (all > static_cast<int64_t>(rows.size())) absl::StrAppend(&note, "; the ", rows.size(), " that miss most:");
  return absl::StrCat(R"(<details><summary>)", note, R"(</summary><div class="scroll">)",
                      Table({"sample", "group", "rows", "unrecorded", "lost"}, rows), "</div></details>");
}

std::string MissingChart(const Document& report) {
  const Document& groups = report["groups"];
  std::vector<Bar> bars;
  double most = 0;
  for (const Document& group : groups) {
    const double rows = std::max(1.0, group["rows"].get<double>());
    bars.push_back(
        {{100 * group["unrecorded_rows"].get<double>() / rows, 100 * group["lost_rows"].get<double>() / rows}});
    most = std::max(most, bars.back().parts[0] + bars.back().parts[1]);
  }
  if (most == 0) return R"(<p class="quiet">No row is missing.</p>)";
  most = std::min(100.0, RoundUp(most));
  return absl::StrCat(
      ChartHtml({.tell = "missing",
                 .columns = bars.size(),
                 .height = 150,
                 .y = ScaleTicks(0, most),
                 .x = CellTicks(groups.size(), kTicks, [&](size_t i) { return GroupLabel(groups[i]); }),
                 .x_name = "group",
                 .svg = Bars(bars, {"cool", "warm"}, most)}),
      R"(<div class="legend"><span><i class="cool"></i>unrecorded</span><span><i class="warm"></i>lost</span>)",
      "<span>percent of rows</span></div>", MissingSamples(report));
}

void AddFacts(const Document& object, const std::string& prefix, std::string& html) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      AddFacts(value, absl::StrCat(prefix, Title(key), " · "), html);
      continue;
    }
    absl::StrAppend(&html, "<tr><th>", HtmlText(absl::StrCat(prefix, Title(key))), R"(</th><td data-key=")",
                    HtmlText(key), R"(">)", HtmlText(Cell(key, value)), "</td></tr>");
  }
}

std::string LayerTable(const Document& report) {
  std::vector<std::string> head = {"layer",      "experts", "never chosen",         "busiest expert", "its choices",
                                   "max ÷ mean", "entropy", "shared by neighbours", "by chance"};
  const bool compared = !report["mismatch"].is_null();
  if (compared) head.insert(head.end(), {"other experts", "none in common", "other order"});
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < report["load"].size(); ++i) {
    const Document& load = report["load"][i];
    const Document& near = report["neighbours"][i];
    auto& row = rows.emplace_back(
        std::vector<std::string>{load["layer"].dump(), Count(load["experts"]), Count(load["unused"]),
                                 load["busiest"].dump(), Count(load["busiest_count"]), Fixed(load["max_to_mean"]),
                                 Fixed(load["entropy"]), Fixed(near["shared"]), Fixed(near["expected"])});
    if (!compared) continue;
    const Document& layer = report["mismatch"]["layers"][i];
    for (const char* key : {"other_experts", "no_common_expert", "order_only"}) {
      row.push_back(Percent(layer[key].get<double>(), layer["choices"].get<double>()));
    }
  }
  return Table(head, rows);
}

std::string Tile(const std::string& value, const std::string& words) {
  return absl::StrCat(R"(<div class="tile"><b>)", HtmlText(value), "</b><span>", HtmlText(words), "</span></div>");
}

double Sum(const Document& objects, const char* key) {
  double sum = 0;
  for (const Document& object : objects) sum += object[key].get<double>();
  return sum;
}

std::string Tiles(const Document& report) {
  const Document& run = report["run"];
  const auto median = [](const Document& objects, const char* key) -> Document {
    const auto value = Median(Known(objects, key));
    return value ? Document(*value) : Document();
  };
  std::string html = Tile(Count(run["samples"]),
                          absl::StrCat("samples from engine and trainer, ", Count(run["sealed_samples"]), " sealed"));
  html += Tile(Count(run["rows"]), "rows from engine and trainer");
  html += Tile(HumanBytes(run["stored_bytes"].get<int64_t>()), "stored");
  html += Tile(Fixed(median(report["load"], "max_to_mean")), "busiest expert over the mean, median layer");
  html += Tile(Fixed(median(report["load"], "entropy")), "entropy of the load, median layer");
  html += Tile(Fixed(median(report["neighbours"], "shared")), "experts shared by neighbours, median layer");
  const double missing = Sum(report["groups"], "unrecorded_rows") + Sum(report["groups"], "lost_rows");
  html += Tile(Percent(missing, Sum(report["groups"], "rows")), "of rows missing");
  const Document& mismatch = report["mismatch"];
  if (mismatch.is_null()) return html;
  const Document& layers = mismatch["layers"];
  return html + Tile(Percent(Sum(layers, "other_experts"), Sum(layers, "choices")), "of choices differ in the trainer");
}

std::string ReadSamples(const Document& report) {
  const Document& samples = report["samples"];
  const auto all = samples["all"].get<int64_t>(), read = samples["read"].get<int64_t>();
  if (read == all) return Samples(all);
  return absl::StrCat(Samples(read), read == 1 ? " that was read, of " : " that were read, of ", HumanCount(all));
}

std::string Method(const Document& report) {
  const Document& samples = report["samples"];
  if (samples["read"] == samples["all"]) return "The rows of all samples were read.";
  return absl::StrCat(
      "The rows of ", Count(samples["read"]), " of ", Count(samples["all"]),
      " samples were read: those whose id's hash, mixed with the seed ", samples["seed"].dump(),
      ", is smallest. <code>--seed</code> reads others, <code>--samples</code> more. What is said of all rows "
      "or all samples is exact.");
}

std::string Warning(const Document& report) {
  const Document& damaged = report["samples"]["damaged"];
  if (damaged.empty()) return "";
  std::string html = absl::StrCat(R"(<p class="warning">)", damaged.size(), " of the samples could not be read whole:");
  for (size_t i = 0; i < std::min(damaged.size(), kShownDamaged); ++i) {
    absl::StrAppend(&html, "<br><code>", HtmlText(damaged[i]["error"].get<std::string>()), "</code>");
  }
  return html + "</p>";
}

std::string Ramp(bool two_sided) {
  std::string html;
  for (int step = two_sided ? kSteps : 0; step > 0; --step) absl::StrAppend(&html, R"(<i class="m)", step, R"("></i>)");
  html += "<i></i>";
  for (int step = 1; step <= kSteps; ++step) absl::StrAppend(&html, R"(<i class="s)", step, R"("></i>)");
  return html;
}

}  // namespace

std::string RenderReport(const Document& report, const std::string& made) {
  const Document& groups = report["groups"];
  const Document& versions = report["weight_versions"];
  const std::string empty = R"(<p class="quiet">There are no samples.</p>)";
  std::string facts = R"(<table class="facts"><tbody>)";
  AddFacts(report["run"], "", facts);
  const std::map<std::string, std::string> values = {
      {"run", HtmlText(report["run"]["run"].get<std::string>())},
      {"made", HtmlText(made)},
      {"version", ROUTING_REPLAY_VERSION},
      {"warning", Warning(report)},
      {"tiles", Tiles(report)},
      {"rows", report["load"].empty() ? "0" : Count(report["load"][0]["rows"])},
      {"load", LoadCharts(report)},
      {"ramp_two_sided", Ramp(true)},
      {"ramp_one_sided", Ramp(false)},
      {"group_bins", absl::StrCat(groups.size(), groups.size() == 1 ? " column" : " columns")},
      {"groups", groups.empty() ? empty
                                : BalanceCharts(report, groups, "groups", "group_entropy", "group",
                                                [&](size_t i) { return GroupLabel(groups[i]); })},
      {"entropy_least", absl::StrFormat("%.2f", EntropyFloor(groups))},
      {"versions", versions.empty() ? empty
                                    : BalanceCharts(report, versions, "versions", "version_entropy", "weight version",
                                                    [&](size_t i) { return versions[i]["label"].get<std::string>(); })},
      {"version_entropy_least", absl::StrFormat("%.2f", EntropyFloor(versions))},
      {"read_samples", ReadSamples(report)},
      {"pairs", report["neighbours"].empty() ? "0" : Count(report["neighbours"][0]["pairs"])},
      {"neighbours", NeighbourChart(report)},
      {"mismatch_caption", MismatchCaption(report)},
      {"mismatch", MismatchChart(report)},
      {"length_width", Count(report["lengths"]["width"])},
      {"samples", Count(report["lengths"]["samples"])},
      {"lengths", LengthChart(report)},
      {"length_facts", LengthFacts(report)},
      {"missing", MissingChart(report)},
      {"facts", facts + "</tbody></table>"},
      {"layers", LayerTable(report)},
      {"method", Method(report)},
      {"data", ScriptJson(report)},
  };
  return FillTemplate(kReportTemplate, values);
}

}  // namespace routing_replay::client
