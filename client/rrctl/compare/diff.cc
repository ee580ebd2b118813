#include "client/rrctl/compare/diff.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/rrctl/compare/route_comparison.h"
#include "client/rrctl/portions.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::client {
namespace {

struct Side {
  std::shared_ptr<Run> run;
  SampleState state;
};

absl::StatusOr<Side> SideOf(Client& client, const std::string& run, const std::string& sample, Producer producer) {
  auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  auto state = (*joined)->Stat(sample, producer);
  if (absl::IsNotFound(state.status())) {
    const bool trainer = producer == Producer::kTrainer;
    return MakeError(absl::StatusCode::kNotFound,
                     absl::StrCat("run ", run, " has no rows of sample ", sample,
                                  trainer ? " that the trainer recorded (R2)" : " from the rollout engine (R3)"),
                     {.reason = Reason::kNoSample, .field = "producer", .sample = sample});
  }
  if (!state.ok()) return state.status();
  return Side{*std::move(joined), *std::move(state)};
}

// "RUN:SAMPLE", where both may have colons: whatever the server has. With two readings that it has both of, nobody
// knows which is meant.
absl::StatusOr<Side> FindSide(Client& client, const std::string& name, Producer producer) {
  absl::Status failure;
  std::optional<Side> found;
  for (size_t colon = name.find(':'); colon != name.npos; colon = name.find(':', colon + 1)) {
    if (colon == 0 || colon + 1 == name.size()) continue;
    auto side = SideOf(client, name.substr(0, colon), name.substr(colon + 1), producer);
    if (side.ok() && found) {
      return Invalid("sample", absl::StrCat("\"", name, "\" is a sample of run \"", found->run->name(),
                                            "\" and one of run \"", side->run->name(), "\"; give --run"));
    }
    if (side.ok()) {
      found = *std::move(side);
    } else if (!absl::IsNotFound(side.status())) {
      return side.status();
    } else {
      failure = side.status();
    }
  }
  if (found) return *std::move(found);
  return failure;
}

// Whether a colon stands between two names.
bool HasBoth(absl::string_view name) {
  const size_t colon = name.find(':', 1);
  return colon != name.npos && colon + 1 < name.size();
}

absl::StatusOr<Side> Resolve(Client& client, const DiffOptions& options, const std::string& name, Producer producer) {
  return options.run.empty() ? FindSide(client, name, producer) : SideOf(client, options.run, name, producer);
}

Document Describe(const Side& side) {
  Document object = {{"run", side.run->name()},
                     {"sample", side.state.sample},
                     {"producer", ProducerName(side.state.producer)},
                     {"rows", side.state.committed_rows},
                     {"recorded_rows", side.state.committed_rows - TotalRows(side.state.unrecorded)},
                     {"tokens", nullptr},
                     {"engine", side.state.engine}};
  if (side.state.num_tokens) object["tokens"] = *side.state.num_tokens;
  return object;
}

Document SameTokens(const SampleState& a, const SampleState& b) {
  if (!a.token_check || !b.token_check || a.token_check->rows != b.token_check->rows) return nullptr;
  return a.token_check->crc32c == b.token_check->crc32c;
}

Document DescribeLayer(const LayerDifferences& layer) {
  return {{"choices", layer.choices},
          {"order_only", layer.order},
          {"other_experts", layer.set},
          {"no_common_expert", layer.disjoint},
          {"replaced_ids", layer.replaced_ids}};
}

Document DescribeFirst(const Geometry& geometry, const DifferingChoice& first) {
  return {{"row", first.row},
          {"layer", geometry.layer(first.ordinal).layer_id},
          {"what", first.same_set ? "order" : "experts"},
          {"a", first.a},
          {"b", first.b}};
}

Document Summarize(const Side& a, const Side& b, const RouteComparison& compared) {
  const Geometry& geometry = a.run->geometry();
  LayerDifferences all;
  Document layers = Document::array();
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerDifferences& layer = compared.layers()[ordinal];
    all.order += layer.order;
    all.set += layer.set;
    all.disjoint += layer.disjoint;
    if (layer.differing() == 0) continue;
    Document row = {{"layer", geometry.layer(ordinal).layer_id}};
    row.update(DescribeLayer(layer));
    layers.push_back(std::move(row));
  }
  const bool equal = layers.empty() && compared.only_a() == 0 && compared.only_b() == 0 &&
                     a.state.committed_rows == b.state.committed_rows;
  return {{"equal", equal},
          {"a", Describe(a)},
          {"b", Describe(b)},
          {"same_tokens", SameTokens(a.state, b.state)},
          {"compared_rows", compared.rows()},
          {"rows_only_in_a", compared.only_a()},
          {"rows_only_in_b", compared.only_b()},
          {"differing_rows", compared.differing_rows()},
          {"differing_layers", layers.size()},
          {"order_only", all.order},
          {"other_experts", all.set},
          {"no_common_expert", all.disjoint},
          {"first", compared.first() ? DescribeFirst(geometry, *compared.first()) : Document()},
          {"layers", std::move(layers)}};
}

// Rows of one portion that the side has; what is behind its end is none.
absl::StatusOr<SampleRows> RowsOf(const Side& side, const DiffOptions& options, RowRange portion) {
  const RowRange there = Intersect(portion, {0, side.state.committed_rows});
  if (!there.empty()) {
    return ReadPortion(
        *side.run, {.state = side.state, .layers = LayersOf(side.run->geometry()), .timeout = options.timeout}, there);
  }
  return SampleRows{.layers = std::vector<std::vector<uint16_t>>(side.run->geometry().num_moe_layers())};
}

}  // namespace

absl::Status CheckNames(const DiffOptions& options) {
  std::vector<std::string> names = {options.a};
  if (!options.b.empty()) names.push_back(options.b);
  if (options.run.empty()) {
    const auto odd = std::find_if_not(names.begin(), names.end(), HasBoth);
    if (odd == names.end()) return absl::OkStatus();
    return Invalid("--run", absl::StrCat("\"", *odd, "\" is not RUN:SAMPLE; or give --run"));
  }
  names.push_back(options.run);
  for (const std::string& name : names) {
    if (absl::Status status = CheckId(name, "--run"); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<Document> Diff(Client& client, const DiffOptions& options, const ShowProgress& progress) {
  if (absl::Status status = CheckNames(options); !status.ok()) return status;
  const bool producers = options.b.empty();
  const auto a = Resolve(client, options, options.a, producers ? Producer::kRollout : options.producer);
  if (!a.ok()) return a.status();
  const auto b = producers ? SideOf(client, a->run->name(), a->state.sample, Producer::kTrainer)
                           : Resolve(client, options, options.b, options.producer);
  if (!b.ok()) return b.status();
  const Geometry& geometry = a->run->geometry();
  if (!(geometry == b->run->geometry())) {
    return Invalid("geometry", absl::StrCat("run ", a->run->name(), " has ", geometry.DebugString(), ", run ",
                                            b->run->name(), " ", b->run->geometry().DebugString()));
  }
  RouteComparison compared(geometry);
  const RowRange all{0, std::max(a->state.committed_rows, b->state.committed_rows)};
  for (const RowRange portion : SplitAtWindows(all, PortionRows(geometry))) {
    const auto rows_a = RowsOf(*a, options, portion);
    if (!rows_a.ok()) return rows_a.status();
    const auto rows_b = RowsOf(*b, options, portion);
    if (!rows_b.ok()) return rows_b.status();
    compared.Add({rows_a->rows, rows_a->layers}, {rows_b->rows, rows_b->layers});
    progress(
        {.done = portion.end, .total = all.end, .bytes = 2 * portion.end * geometry.raw_row_bytes(), .unit = "rows"});
  }
  return Summarize(*a, *b, compared);
}

}  // namespace routing_replay::client
