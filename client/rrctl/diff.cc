#include "client/rrctl/diff.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/rrctl/rows.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {
namespace {

absl::Span<const uint16_t> ChoiceAt(const SampleRows& rows, int32_t ordinal, int64_t slot, int32_t top_k) {
  return absl::MakeConstSpan(rows.layers[ordinal]).subspan(slot * top_k, top_k);
}

// A sample and its run.
using SampleName = std::pair<std::string, std::string>;

absl::StatusOr<SampleName> ParseName(const std::string& name, const char* field) {
  const size_t colon = name.find(':');
  if (colon == name.npos) return Invalid(field, absl::StrCat("must be RUN:SAMPLE, got \"", name, "\""));
  SampleName parsed(name.substr(0, colon), name.substr(colon + 1));
  for (const std::string& id : {parsed.first, parsed.second}) {
    RR_RETURN_IF_ERROR(CheckId(id, field));
  }
  return parsed;
}

struct Side {
  std::shared_ptr<Run> run;
  SampleState state;
};

absl::StatusOr<Side> Find(Client& client, const SampleName& name, Producer producer) {
  const auto& [run, sample] = name;
  RR_ASSIGN_OR_RETURN(auto joined, client.JoinRun(run));
  auto state = joined->Stat(sample, producer);
  if (absl::IsNotFound(state.status())) {
    const bool trainer = producer == Producer::kTrainer;
    return MakeError(absl::StatusCode::kNotFound,
                     absl::StrCat("run ", run, " has no rows of sample ", sample,
                                  trainer ? " that the trainer recorded (R2)" : " from the rollout engine (R3)"),
                     {.reason = Reason::kNoSample, .field = "producer", .sample = sample});
  }
  if (!state.ok()) return state.status();
  return Side{std::move(joined), *std::move(state)};
}

Document Describe(const Side& side) {
  return {{"run", side.run->name()},
          {"sample", side.state.sample},
          {"producer", ProducerName(side.state.producer)},
          {"rows", side.state.committed_rows},
          {"recorded_rows", side.state.committed_rows - TotalRows(side.state.unrecorded)},
          {"tokens", OrNull(side.state.num_tokens)},
          {"engine", side.state.engine}};
}

Document SameTokens(const SampleState& a, const SampleState& b) {
  if (!a.token_check || !b.token_check || a.token_check->rows != b.token_check->rows) return nullptr;
  return a.token_check->crc32c == b.token_check->crc32c;
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
    if (layer.differing() == 0) continue;
    layers.push_back(DescribeLayer(geometry.layer(ordinal).layer_id, layer));
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
          {"order_only", all.order},
          {"other_experts", all.set},
          {"first", compared.first() ? DescribeFirst(geometry, *compared.first()) : Document()},
          {"layers", std::move(layers)}};
}

}  // namespace

Document DescribeLayer(int32_t layer_id, const LayerDifferences& layer) {
  return {{"layer", layer_id}, {"choices", layer.choices}, {"order_only", layer.order}, {"other_experts", layer.set}};
}

void RouteComparison::Add(const SampleRows& a, const SampleRows& b) {
  int64_t common = 0;
  int64_t slot_a = 0, slot_b = 0;  // Where the rows of *in_a and *in_b begin in the ids of a layer.
  for (auto in_a = a.rows.begin(), in_b = b.rows.begin(); in_a != a.rows.end() && in_b != b.rows.end();) {
    const RowRange both = Intersect(*in_a, *in_b);
    for (int64_t row = both.begin; row < both.end; ++row, ++common) {
      differing_rows_ += CompareRow(row, a, slot_a + row - in_a->begin, b, slot_b + row - in_b->begin);
    }
    if (in_a->end <= in_b->end) {
      slot_a += (in_a++)->size();
    } else {
      slot_b += (in_b++)->size();
    }
  }
  rows_ += common;
  only_a_ += TotalRows(a.rows) - common;
  only_b_ += TotalRows(b.rows) - common;
}

bool RouteComparison::CompareRow(int64_t row, const SampleRows& a, int64_t slot_a, const SampleRows& b,
                                 int64_t slot_b) {
  bool differs = false;
  for (int32_t ordinal = 0; ordinal < geometry_.num_moe_layers(); ++ordinal) {
    const int32_t top_k = geometry_.layer(ordinal).top_k;
    const auto ids_a = ChoiceAt(a, ordinal, slot_a, top_k);
    const auto ids_b = ChoiceAt(b, ordinal, slot_b, top_k);
    LayerDifferences& layer = layers_[ordinal];
    ++layer.choices;
    if (std::equal(ids_a.begin(), ids_a.end(), ids_b.begin())) continue;
    differs = true;
    const bool same_set = std::is_permutation(ids_a.begin(), ids_a.end(), ids_b.begin());
    ++(same_set ? layer.order : layer.set);
    if (first_) continue;
    first_ = {row, ordinal, same_set, {ids_a.begin(), ids_a.end()}, {ids_b.begin(), ids_b.end()}};
  }
  return differs;
}

absl::StatusOr<Document> Diff(Client& client, const DiffOptions& options) {
  const bool producers = options.b.empty();
  RR_ASSIGN_OR_RETURN(const auto name_a, ParseName(options.a, "A"));
  RR_ASSIGN_OR_RETURN(const auto name_b, producers ? name_a : ParseName(options.b, "B"));
  RR_ASSIGN_OR_RETURN(const auto a, Find(client, name_a, producers ? Producer::kRollout : options.producer));
  RR_ASSIGN_OR_RETURN(const auto b, Find(client, name_b, producers ? Producer::kTrainer : options.producer));
  const Geometry& geometry = a.run->geometry();
  if (!(geometry == b.run->geometry())) {
    return Invalid("geometry", absl::StrCat("run ", a.run->name(), " has ", geometry.DebugString(), ", run ",
                                            b.run->name(), " ", b.run->geometry().DebugString()));
  }
  RouteComparison compared(geometry);
  const RowRange all{0, std::max(a.state.committed_rows, b.state.committed_rows)};
  for (const RowRange portion : SplitAtWindows(all, PortionRows(geometry))) {
    RR_ASSIGN_OR_RETURN(const auto rows_a, ReadPortion(*a.run, a.state, portion));
    RR_ASSIGN_OR_RETURN(const auto rows_b, ReadPortion(*b.run, b.state, portion));
    compared.Add(rows_a, rows_b);
  }
  return Summarize(a, b, compared);
}

void AddDiff(Application& application) {
  const auto options = std::make_shared<DiffOptions>();
  CLI::App* diff = application.Add(
      "diff",
      "compare the experts of two samples, or of one sample's two producers\n"
      "Names the first row and layer that differ, and counts rows and layers; the same experts in another order are "
      "counted separately. Exit code 1 if they differ.",
      [options](Session& session) {
        session.ExitCodeIsTheAnswer();
        RR_ASSIGN_OR_RETURN(const auto found, session.Answer([&](Client& client) { return Diff(client, *options); }));
        session.output().PrintWithTable(found, "layers");
        if (!found["equal"].get<bool>()) session.AnswerNo();
        return session.output().Flush();
      });
  diff->add_option("A", options->a, "RUN:SAMPLE")->required();
  diff->add_option("B", options->b,
                   "the second sample; by default A's rows from the trainer (R2) are compared with those from the "
                   "rollout engine (R3)");
  AddProducer(diff, options->producer);
}

}  // namespace routing_replay::client
