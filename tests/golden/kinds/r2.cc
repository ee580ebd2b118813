// r2_*: two sorts of cases, told apart by their expectations. Merges state, for each token of a sample, the rank and
// the local row that recorded it. Pipelines state the layers that result from merging the chunks of a rank, and of all
// ranks.
#include <map>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/merge_records.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/neutral_layout.h"
#include "tests/golden/kinds/split_of.h"
#include "tests/reference/schedule.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::golden {
namespace {

using trainer::MicroBatchLayout;

// The number of a local record is ((cp_rank · tp_size + tp_rank) · local_rows + local_row).
constexpr char kRecordNumber[] = "((cp_rank * tp_size + tp_rank) * local_rows + local_row)";

// Returns merged[sample][token]: the number of the local record (kRecordNumber) from which the token gets its row.
// Every rank records the number of each of its local rows as two expert ids, one per layer. Of tensor ranks that see
// the same rows, only the first one records them.
absl::StatusOr<Json> MergedNumbers(const MicroBatchLayout& layout) {
  constexpr int32_t kBase = 50000;
  const Geometry geometry = Geometry::Uniform(2, kMaxExperts, 1);
  std::vector<trainer::BufferLayout> buffers;
  std::vector<trainer::RowMap> maps;
  std::vector<std::vector<uint8_t>> indices;
  for (int32_t c = 0; c < layout.cp_size; ++c) {
    for (int32_t t = 0; t < (layout.sequence_parallel ? layout.tp_size : 1); ++t) {
      auto map = trainer::BuildRowMap(layout, {.cp_rank = c, .tp_rank = t});
      if (!map.ok()) return map.status();
      auto buffer = trainer::BufferLayout::Create(geometry, {.ordinals = {0, 1}, .rows = map->rows});
      if (!buffer.ok()) return buffer.status();
      std::vector<uint8_t>& recorded = indices.emplace_back(buffer->bytes());
      for (int64_t row = 0; row < map->rows; ++row) {
        const int64_t number = (int64_t{c} * layout.tp_size + t) * map->rows + row;
        trainer::StoreId(buffer->slab(absl::MakeSpan(recorded), 0).data(), 2, row, number % kBase);
        trainer::StoreId(buffer->slab(absl::MakeSpan(recorded), 1).data(), 2, row, number / kBase);
      }
      buffers.push_back(*std::move(buffer));
      maps.push_back(*std::move(map));
    }
  }
  std::vector<trainer::RankRecord> records;
  for (size_t i = 0; i < maps.size(); ++i) records.push_back({buffers[i], maps[i], indices[i]});
  const auto merges = trainer::MergeRecords(geometry, layout, records);
  if (!merges.ok()) return merges.status();
  Json merged = Json::array();
  for (const trainer::MergedSequence& merge : *merges) {
    Json& sample = merged.emplace_back(Json::array());
    for (int64_t row = 0; row < merge.rows; ++row) {
      sample.push_back(int64_t{trainer::LoadId(merge.planes.data(), 2, row)} +
                       kBase * int64_t{trainer::LoadId(merge.planes.data(), 2, merge.rows + row)});
    }
  }
  return merged;
}

Outcome RunMerge(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (input.value("record_number", kRecordNumber) != kRecordNumber)
    return Failed("records are numbered in another way");
  const Json& neutral = input.at("neutral");
  if (std::string contradiction = NeutralContradiction(input); !contradiction.empty()) return Failed(contradiction);
  const MicroBatchLayout layout = NeutralLayout(neutral, neutral.value("row_order", "packed"));
  const Outcome policy = RunPolicy(input, layout);
  if (policy.verdict != Outcome::Verdict::kPassed) return policy;
  const auto merged = MergedNumbers(layout);
  if (!merged.ok()) return Failed(absl::StrCat("rejected: ", merged.status().message()));
  const Json& expected = golden_case.at("expect").at("merged");
  if (merged->size() != expected.size()) return Failed("the case has another number of samples");
  for (size_t i = 0; i < expected.size(); ++i) {
    if ((*merged)[i] == expected[i]) continue;
    return Failed(
        absl::StrCat("sample ", i, " is merged from ", (*merged)[i].dump(), ", expected ", expected[i].dump()));
  }
  return policy;
}

// One token goes through all chunks. Each chunk records the layer's id as the expert that the token chose in that
// layer.
class PipelineOfOneToken {
 public:
  PipelineOfOneToken(Geometry geometry, const trainer::LayerTable& table)
      : geometry_(std::move(geometry)), table_(table) {}

  // Makes the records of a micro-batch in the order of the schedule.
  absl::Status Record(absl::Span<const trainer::MicroBatchChunk> schedule, int32_t micro_batch) {
    for (int32_t p = 0; p < table_.pipeline_size(); ++p) {
      for (const trainer::MicroBatchChunk& pass : schedule) {
        if (pass.micro_batch != micro_batch) continue;
        const auto layers = trainer::OwnedMoeLayers(geometry_, table_, p, pass.chunk);
        if (!layers.ok()) return layers.status();
        if (auto s = Add(*layers); !s.ok()) return s;
      }
    }
    return absl::OkStatus();
  }

  // The decoder layer ids that the merged records have for these layers.
  absl::StatusOr<Json> Merge(absl::Span<const trainer::OwnedLayer> layers) const {
    std::vector<trainer::RankRecord> records;
    for (const Recorded& record : recorded_) records.push_back({record.layout, map_, record.indices});
    const auto merged = trainer::MergeRecords(geometry_, layout_, records);
    if (!merged.ok()) return merged.status();
    Json ids = Json::array();
    const std::vector<uint8_t>& planes = merged->at(0).planes;
    for (const trainer::OwnedLayer& layer : layers) {
      ids.push_back(trainer::LoadId(planes.data(), kIdBytes, layer.ordinal));
    }
    return ids;
  }

  const Geometry& geometry() const { return geometry_; }

 private:
  static constexpr int32_t kIdBytes = 2;
  struct Recorded {
    trainer::BufferLayout layout;
    std::vector<uint8_t> indices;
  };

  absl::Status Add(absl::Span<const trainer::OwnedLayer> layers) {
    trainer::BufferLayout::Options options{.rows = 1};
    for (const trainer::OwnedLayer& layer : layers) options.ordinals.push_back(layer.ordinal);
    auto layout = trainer::BufferLayout::Create(geometry_, options);
    if (!layout.ok()) return layout.status();
    std::vector<uint8_t> indices(layout->bytes());
    for (int32_t slot = 0; slot < layout->num_layers(); ++slot) {
      trainer::StoreId(layout->slab(absl::MakeSpan(indices), slot).data(), kIdBytes, 0,
                       static_cast<uint16_t>(layout->layer(slot).layer_id));
    }
    recorded_.push_back({*std::move(layout), std::move(indices)});
    return absl::OkStatus();
  }

  const Geometry geometry_;
  const trainer::LayerTable& table_;
  const MicroBatchLayout layout_{
      .sequences = {{.tokens = 1, .recorded_rows = 1}}, .cu_seqlens_padded = {0, 1}, .total_rows = 1};
  const trainer::RowMap map_ = *trainer::BuildRowMap(layout_, {});
  std::vector<Recorded> recorded_;
};

// A geometry with the same MoE layers and so many experts that an expert id can be any layer id.
absl::StatusOr<Geometry> OneExpertPerLayer(const Geometry& model) {
  Geometry::Options options{.num_layers = model.num_layers(), .num_experts = {kMaxExperts}, .top_k = {1}};
  for (const LayerRouting& layer : model.layers()) options.moe_layer_ids.push_back(layer.layer_id);
  return Geometry::Create(options);
}

Json LocalLayers(const Geometry& geometry, const trainer::LayerTable& table) {
  Json ranks = Json::array();
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    Json& chunks = ranks.emplace_back(Json::array());
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      Json& layers = chunks.emplace_back(Json::array());
      const auto owned = trainer::OwnedMoeLayers(geometry, table, p, v);
      if (!owned.ok()) continue;
      for (const trainer::OwnedLayer& layer : *owned) layers.push_back(layer.layer_id);
    }
  }
  return ranks;
}

// For one micro-batch, checks the merge of each rank's own chunks, and the merge of all ranks. If the framework is
// known to be wrong, `correct` is expected of every rank.
Outcome RunMicroBatch(const PipelineOfOneToken& pipeline, const trainer::LayerTable& table, const Json& expect) {
  const bool wrong = expect.value("known_wrong", false);
  std::vector<trainer::OwnedLayer> all;
  for (const LayerRouting& layer : pipeline.geometry().layers()) {
    all.push_back({.layer_id = layer.layer_id, .ordinal = static_cast<int32_t>(all.size())});
  }
  const auto gathered = pipeline.Merge(all);
  if (!gathered.ok()) return Failed(absl::StrCat("rejected: ", gathered.status().message()));
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    const auto owned = trainer::OwnedMoeLayers(pipeline.geometry(), table, p);
    if (!owned.ok()) return Failed(absl::StrCat("rejected: ", owned.status().message()));
    const auto reordered = pipeline.Merge(*owned);
    if (!reordered.ok()) return Failed(absl::StrCat("rejected: ", reordered.status().message()));
    const Json& of_rank = expect.at("layers_after_reorder").at(p);
    const Json& of_all = wrong ? expect.at("correct") : expect.at("layers_after_gather").at(p);
    if (*reordered != of_rank) {
      return Failed(absl::StrCat("rank ", p, " merges layers ", reordered->dump(), ", expected ", of_rank.dump()));
    }
    if (*gathered != of_all) {
      return Failed(absl::StrCat("all ranks merge layers ", gathered->dump(), ", expected ", of_all.dump()));
    }
  }
  return Passed();
}

Outcome RunPipeline(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const auto table = FrameworkTable(input);
  if (!table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
  const auto model = GeometryOf(input.at("num_layers").get<int32_t>(), input.at("moe_layer_freq"));
  if (!model.ok()) return Failed(absl::StrCat("rejected: ", model.status().message()));
  const Json local = LocalLayers(*model, *table);
  if (local != input.at("local_moe_layers")) return Failed(absl::StrCat("local MoE layers are ", local.dump()));
  const auto schedule = trainer::ScheduleTable(input.at("micro_batches").get<int32_t>(), table->virtual_stages(),
                                               input.at("group_size").get<int32_t>());
  if (!schedule.ok()) return Failed(absl::StrCat("rejected: ", schedule.status().message()));
  Json order = Json::array();
  for (const trainer::MicroBatchChunk& pass : *schedule) order.push_back({pass.micro_batch, pass.chunk});
  if (order != input.at("schedule")) return Failed(absl::StrCat("records are made in the order ", order.dump()));
  for (int32_t micro_batch = 0; micro_batch < input["micro_batches"].get<int32_t>(); ++micro_batch) {
    auto geometry = OneExpertPerLayer(*model);
    if (!geometry.ok()) return Failed(absl::StrCat("rejected: ", geometry.status().message()));
    PipelineOfOneToken pipeline(*std::move(geometry), *table);
    if (auto s = pipeline.Record(*schedule, micro_batch); !s.ok())
      return Failed(absl::StrCat("rejected: ", s.message()));
    Outcome outcome = RunMicroBatch(pipeline, *table, expect);
    if (outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  }
  return Passed();
}

Outcome RunR2(const Json& golden_case) {
  return golden_case.at("expect").contains("merged") ? RunMerge(golden_case) : RunPipeline(golden_case);
}

}  // namespace

Kind R2Kind() { return {{"r2_"}, RunR2}; }

}  // namespace routing_replay::golden
