#include "trainer_plugin/layout/mistakes.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "trainer_plugin/layout/fields.h"

namespace routing_replay::trainer {

namespace {

// Returns true if both local rows replay the same row, or neither replays one.
bool SameRow(const LocalRow& a, const LocalRow& b) {
  const bool replayed = a.state == RowState::kReplayed;
  return replayed == (b.state == RowState::kReplayed) && (!replayed || (a.sequence == b.sequence && a.row == b.row));
}

bool SameRows(const std::vector<LocalRow>& a, const std::vector<LocalRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameRow);
}

// Collects the mistakes that lead to other rows than the correct ones. The rows of a mistake are cut or padded to the
// number of local rows.
class RowCatalogue {
 public:
  RowCatalogue(const MicroBatchLayout& layout, const RowRank& rank, std::vector<LocalRow> right)
      : layout_(layout), rank_(rank) {
    const char* what = "the rows that this rank's router should see";
    ways_.push_back({{"none"}, what, {"none", what}, std::move(right)});
  }

  // Adds the rows of another layout or rank. If that layout is invalid, the mistake is impossible.
  void Add(const std::string& mistake, const std::string& what, const Mistake& reversed,
           const std::function<void(MicroBatchLayout&, RowRank&)>& change) {
    MicroBatchLayout layout = layout_;
    RowRank rank = rank_;
    change(layout, rank);
    const absl::StatusOr<RowMap> map = BuildRowMap(layout, rank);
    if (map.ok()) AddRows(mistake, what, reversed, ExpandRowMap(*map));
  }

  void AddRows(const std::string& mistake, const std::string& what, const Mistake& reversed,
               std::vector<LocalRow> rows) {
    rows.resize(right().size());
    const auto known =
        std::find_if(ways_.begin(), ways_.end(), [&](const RowWay& way) { return SameRows(way.rows, rows); });
    if (known == ways_.end()) {
      ways_.push_back({{mistake}, what, reversed, std::move(rows)});
    } else if (known != ways_.begin()) {
      known->mistakes.push_back(mistake);
    }
  }

  // Adds the correct rows shifted: each local row shows the row that is `by` rows later.
  void AddShifted(const Mistake& mistake, const Mistake& reversed, int32_t by) {
    std::vector<LocalRow> rows = right();
    for (LocalRow& row : rows) {
      if (row.state == RowState::kPad) continue;
      row.row += by;
      const bool recorded = row.row >= 0 && row.row < layout_.sequences[row.sequence].recorded_rows;
      row.state = recorded ? RowState::kReplayed : RowState::kUnrecorded;
    }
    AddRows(mistake.name, mistake.what, reversed, std::move(rows));
  }

  const std::vector<LocalRow>& right() const { return ways_.front().rows; }
  std::vector<RowWay> Take() { return std::move(ways_); }

 private:
  const MicroBatchLayout& layout_;
  const RowRank& rank_;
  std::vector<RowWay> ways_;
};

void AddPartitions(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  if (layout.cp_size == 1) return;
  for (const Partition partition : {Partition::kContiguous, Partition::kContiguousPerSequence,
                                    Partition::kZigzagPerDocument, Partition::kZigzagPerSequence}) {
    const std::string name(NameOf(partition));
    catalogue.Add(absl::StrCat("partition_", name),
                  absl::StrCat("rows were cut as ", name, ", but the model's tokens as ", NameOf(layout.partition)),
                  {absl::StrCat("partition_", NameOf(layout.partition)),
                   absl::StrCat("rows were cut as ", NameOf(layout.partition), ", but the model's tokens as ", name)},
                  [partition](MicroBatchLayout& l, RowRank&) { l.partition = partition; });
  }
  catalogue.Add("no_context_parallel_slice",
                "rows were not sliced for context parallelism: each rank got the first rows",
                {"context_parallel_slice", "rows were sliced for context parallelism, but the model's tokens are not"},
                [](MicroBatchLayout& l, RowRank& r) {
                  l.cp_size = 1;
                  r.cp_rank = 0;
                });
}

Mistake NoSlice() {
  return {"no_sequence_parallel_slice",
          "rows were not sliced for sequence parallelism: each tensor-parallel rank got the first rows"};
}
Mistake Slice() {
  return {"sequence_parallel_slice", "rows were sliced by tensor-parallel rank although sequence parallelism is off"};
}

void AddSequenceParallel(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  if (layout.tp_size == 1) return;
  const Mistake mistake = layout.sequence_parallel ? NoSlice() : Slice();
  catalogue.Add(mistake.name, mistake.what, layout.sequence_parallel ? Slice() : NoSlice(),
                [](MicroBatchLayout& l, RowRank&) {
                  l.sequence_parallel = !l.sequence_parallel;
                  l.target_rows.reset();
                });
}

Mistake BatchMajor() {
  return {"batch_major",
          "the batch was flattened batch-major (b·S + s), but Megatron's router sees sequence-major rows (s·B + b)"};
}
Mistake SequenceMajor() {
  return {"sequence_major", "rows were put in sequence-major order, but the router's are batch-major"};
}

void AddOrders(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  const bool sequence_major = layout.row_order == RowOrder::kSequenceMajor;
  if (layout.format == TokenFormat::kBshd && layout.batch_size > 1) {
    const Mistake mistake = sequence_major ? BatchMajor() : SequenceMajor();
    catalogue.Add(mistake.name, mistake.what, sequence_major ? SequenceMajor() : BatchMajor(),
                  [sequence_major](MicroBatchLayout& l, RowRank&) {
                    l.row_order = sequence_major ? RowOrder::kBatchMajor : RowOrder::kSequenceMajor;
                  });
    catalogue.Add("batch_major_sliced_per_sequence",
                  "the batch was flattened batch-major, after a sequence-parallel slice of each sequence",
                  SequenceMajor(), [](MicroBatchLayout& l, RowRank&) {
                    l.row_order = RowOrder::kBatchMajor;
                    l.sp_slice = SpSlice::kBeforeFlatten;
                  });
  }
  if (layout.tokens_per_sample) {
    catalogue.Add(
        "tokens_per_sample_ignored", "packed rows were not un-flattened to tokens_per_sample as the MoE layer does",
        {"tokens_per_sample", "packed rows were un-flattened to tokens_per_sample, but those of the MoE layer are not"},
        [](MicroBatchLayout& l, RowRank&) { l.tokens_per_sample.reset(); });
  }
}

// Adds a layout with other document lengths than the padded ones; the rest of the stream is one padding document.
void SetDocuments(MicroBatchLayout& layout, const std::function<int64_t(const SequenceShape&)>& rows_of) {
  layout.cu_seqlens_padded = {0};
  for (SequenceShape& sequence : layout.sequences) {
    const int64_t rows = rows_of(sequence);
    sequence.tokens = std::min(sequence.tokens, rows);
    sequence.recorded_rows = std::min(sequence.recorded_rows, rows);
    sequence.first_row = 0;
    layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + rows);
  }
  layout.cu_seqlens_padded.push_back(layout.total_rows);
}

void AddPaddings(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  const bool left =
      std::any_of(layout.sequences.begin(), layout.sequences.end(), [](auto& s) { return s.first_row > 0; });
  if (left) {
    catalogue.Add("left_padding_stripped", "left padding was removed from the rows, but the model's input has it",
                  {"left_padding_kept", "rows were padded on the left, but the model's input is not"},
                  [](MicroBatchLayout& l, RowRank&) {
                    for (SequenceShape& sequence : l.sequences) sequence.first_row = 0;
                  });
  }
  if (layout.format != TokenFormat::kThd) {
    catalogue.Add("left_padding_kept", "rows were padded on the left, but the model's rectangle on the right",
                  {"left_padding_stripped", "rows were padded on the right, but the model's rectangle on the left"},
                  [](MicroBatchLayout& l, RowRank&) {
                    for (SequenceShape& sequence : l.sequences) sequence.first_row = l.padded_length - sequence.tokens;
                  });
    return;
  }
  catalogue.Add(
      "padding_between_documents_ignored",
      "rows of the samples were joined without the padding of each document (cu_seqlens without padding instead of "
      "padded ones)",
      {"padding_between_documents", "rows were placed as if documents were padded, but the model's have no padding"},
      [](MicroBatchLayout& l, RowRank&) {
        SetDocuments(l, [](const SequenceShape& sequence) { return sequence.tokens; });
      });
  catalogue.Add(
      "joined_recorded_rows",
      "recorded rows were joined, one less per sample than its tokens: each sample is shifted one row more than the "
      "sample before it",
      {"joined_tokens", "each document was assumed to be one token longer than the model's"},
      [](MicroBatchLayout& l, RowRank&) {
        SetDocuments(l, [](const SequenceShape& sequence) { return sequence.recorded_rows; });
      });
}

void AddRanks(const MicroBatchLayout& layout, const RowRank& rank, RowCatalogue& catalogue) {
  for (int32_t cp = 0; cp < layout.cp_size; ++cp) {
    if (cp == rank.cp_rank) continue;
    catalogue.Add(absl::StrCat("rows_of_cp_rank_", cp),
                  absl::StrCat("these are the rows of context-parallel rank ", cp),
                  {absl::StrCat("rows_of_cp_rank_", rank.cp_rank),
                   absl::StrCat("these are the rows of context-parallel rank ", rank.cp_rank,
                                ", but the model's are those of rank ", cp)},
                  [cp](MicroBatchLayout&, RowRank& r) { r.cp_rank = cp; });
  }
  for (int32_t tp = 0; layout.sequence_parallel && tp < layout.tp_size; ++tp) {
    if (tp == rank.tp_rank) continue;
    catalogue.Add(absl::StrCat("rows_of_tp_rank_", tp), absl::StrCat("these are the rows of tensor-parallel rank ", tp),
                  {absl::StrCat("rows_of_tp_rank_", rank.tp_rank),
                   absl::StrCat("these are the rows of tensor-parallel rank ", rank.tp_rank,
                                ", but the model's are those of rank ", tp)},
                  [tp](MicroBatchLayout&, RowRank& r) { r.tp_rank = tp; });
  }
  catalogue.Add("not_sliced_at_all", "rows were not sliced for any kind of parallelism: each rank got the first rows",
                {"sliced", "rows were sliced, but the model's are not: each rank has all of them"},
                [](MicroBatchLayout& l, RowRank& r) {
                  l.cp_size = 1;
                  l.sequence_parallel = false;
                  l.target_rows.reset();
                  r = {};
                });
}

Mistake Early() { return {"one_row_early", "each token got the route of the token after it"}; }
Mistake Late() { return {"one_row_late", "each token got the route of the token before it"}; }

std::vector<int32_t> IdsOf(const std::vector<OwnedLayer>& owned) {
  std::vector<int32_t> ids;
  ids.reserve(owned.size());
  for (const OwnedLayer& layer : owned) ids.push_back(layer.layer_id);
  return ids;
}

// Collects the mistakes by which a rank gets other layers than the correct ones. If a mistake gives more layers than
// the rank has, the list is cut; if it gives fewer, the list is filled up with -1.
class LayerCatalogue {
 public:
  LayerCatalogue(const Geometry& geometry, const std::vector<OwnedLayer>& right) : geometry_(geometry) {
    const char* what = "the layers that this rank has";
    ways_.push_back({{"none"}, what, {"none", what}, IdsOf(right)});
  }

  void Add(const std::string& mistake, const std::string& what, std::vector<int32_t> layers) {
    Add(mistake, what, {mistake, absl::StrCat("the model's layers match the record under this assumption: ", what)},
        std::move(layers));
  }

  void Add(const std::string& mistake, const std::string& what, const Mistake& reversed, std::vector<int32_t> layers) {
    layers.resize(right().size(), -1);
    const auto known =
        std::find_if(ways_.begin(), ways_.end(), [&](const LayerWay& way) { return way.layers == layers; });
    if (known == ways_.end()) {
      ways_.push_back({{mistake}, what, reversed, std::move(layers)});
    } else if (known != ways_.begin()) {
      known->mistakes.push_back(mistake);
    }
  }

  // Adds the mistake that replaces each correct layer by `change` of that layer.
  void AddEach(const Mistake& mistake, const Mistake& reversed, const std::function<int32_t(int32_t layer)>& change) {
    std::vector<int32_t> layers = right();
    for (int32_t& layer : layers) layer = change(layer);
    Add(mistake.name, mistake.what, reversed, std::move(layers));
  }

  // Adds a guess: the layers that the rank would have under `split`. Adds nothing if the split is not valid.
  void AddSplit(const std::string& mistake, const std::string& what, const LayerSplit& split, const PlanRank& rank) {
    const absl::StatusOr<LayerTable> table = LayerTable::Create(split);
    if (!table.ok()) return;
    const std::optional<int32_t> chunk = table->virtual_stages() == 1 ? std::nullopt : rank.chunk;
    const auto owned = OwnedMoeLayers(geometry_, *table, std::min(rank.pp_rank, split.pipeline_size - 1), chunk);
    if (owned.ok()) Add(mistake, what, IdsOf(*owned));
  }

  const std::vector<int32_t>& right() const { return ways_.front().layers; }
  std::vector<LayerWay> Take() { return std::move(ways_); }

 private:
  const Geometry& geometry_;
  std::vector<LayerWay> ways_;
};

// MoE layers of decoder layers begin, …, end - 1.
std::vector<int32_t> MoeLayersIn(const Geometry& geometry, LayerRange range) {
  std::vector<int32_t> ids;
  for (int32_t layer = range.begin; layer < range.end; ++layer) {
    if (geometry.FindOrdinal(layer)) ids.push_back(layer);
  }
  return ids;
}

// The MoE layers of a chunk if the chunks of each pipeline rank were adjacent: rank 0 has the first layers of the model
// for all of its chunks, then rank 1, and so on.
std::vector<int32_t> ChunksSideBySide(const Geometry& geometry, const LayerTable& table, int32_t pp_rank,
                                      std::optional<int32_t> chunk) {
  LayerRange range;
  for (int32_t p = 0; p <= pp_rank; ++p) {
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      if (p < pp_rank || (chunk && v < *chunk)) range.begin += table.range(p, v).size();
      if (p < pp_rank || !chunk || v <= *chunk) range.end += table.range(p, v).size();
    }
  }
  return MoeLayersIn(geometry, range);
}

Mistake LayerNumber() {
  return {"layer_number_as_index", "Megatron's layer_number, which counts from 1, was used as the index"};
}
Mistake LayerBefore() { return {"one_layer_before", "each layer got the routes of the layer before it"}; }
Mistake MoeOrdinal() {
  return {"moe_ordinal_as_layer",
          "the router's number was used as a decoder layer, although it does not count dense layers"};
}
Mistake DecoderLayer() {
  return {"layer_as_moe_ordinal",
          "the decoder layer was used as an index of MoE layers, although it counts dense layers"};
}
Mistake LastColumns() {
  return {"last_columns",
          "the rows have ids for every decoder layer, and those of the last layers were used for the MoE layers"};
}
Mistake FirstColumns() {
  return {"first_columns",
          "the rows have ids for every decoder layer, and those of the first layers were used for the MoE layers"};
}

void AddNumberings(const Geometry& geometry, const std::vector<OwnedLayer>& right, LayerCatalogue& catalogue) {
  catalogue.AddEach(LayerNumber(), LayerBefore(), [](int32_t layer) { return layer + 1; });
  catalogue.AddEach(MoeOrdinal(), DecoderLayer(), [&](int32_t layer) { return *geometry.FindOrdinal(layer); });
  std::vector<int32_t> ids;
  for (const LayerRouting& layer : geometry.layers()) ids.push_back(layer.layer_id);
  catalogue.AddEach(DecoderLayer(), MoeOrdinal(),
                    [&](int32_t layer) { return layer < static_cast<int32_t>(ids.size()) ? ids[layer] : -1; });
  const int32_t dense = geometry.num_layers() - static_cast<int32_t>(ids.size());
  catalogue.AddEach(LastColumns(), FirstColumns(), [&](int32_t layer) { return *geometry.FindOrdinal(layer) + dense; });
  std::vector<int32_t> local, local_decoder;
  for (size_t i = 0; i < right.size(); ++i) {
    local.push_back(i < ids.size() ? ids[i] : -1);
    local_decoder.push_back(static_cast<int32_t>(i));
  }
  catalogue.Add("no_pipeline_offset",
                "MoE layers were counted from the start of each stage: every stage got the layers of the first stage",
                std::move(local));
  catalogue.Add("construction_order",
                "routers were numbered in the order of their construction, and the number was used as a decoder layer",
                std::move(local_decoder));
  std::vector<int32_t> offset;
  for (size_t i = 0; i < right.size(); ++i) offset.push_back(right.front().layer_id + static_cast<int32_t>(i));
  catalogue.Add("dense_layers_counted", "MoE layers were assumed to follow each other without dense layers in between",
                std::move(offset));
  catalogue.AddEach(LayerBefore(), LayerNumber(), [](int32_t layer) { return layer - 1; });
}

void AddSplits(const Geometry& geometry, const LayerTable& table, const LayerSplit& split, const PlanRank& rank,
               LayerCatalogue& catalogue) {
  const int32_t pp_rank = rank.pp_rank;
  const std::optional<int32_t> chunk = rank.chunk;
  if (table.virtual_stages() > 1) {
    catalogue.Add("chunks_side_by_side",
                  "virtual stages were ignored: the chunks of a rank were assumed to be adjacent",
                  ChunksSideBySide(geometry, table, pp_rank, chunk));
    catalogue.Add("first_chunk_only", "every chunk got the layers of the rank's first chunk",
                  MoeLayersIn(geometry, table.range(pp_rank, 0)));
  }
  catalogue.AddSplit(
      "even_split", "layers were split evenly over the stages",
      {.num_layers = split.num_layers, .pipeline_size = split.pipeline_size, .virtual_stages = table.virtual_stages()},
      rank);
  LayerSplit decoder_alone = split;
  decoder_alone.account_for_embedding = decoder_alone.account_for_loss = false;
  catalogue.AddSplit("embedding_and_loss_ignored", "embedding and loss were not counted in the split", decoder_alone,
                     rank);
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if (p == pp_rank) continue;
    std::vector<int32_t> layers;
    for (int32_t v = chunk.value_or(0); v < (chunk ? *chunk + 1 : table.virtual_stages()); ++v) {
      const std::vector<int32_t> more = MoeLayersIn(geometry, table.range(p, v));
      layers.insert(layers.end(), more.begin(), more.end());
    }
    catalogue.Add(
        absl::StrCat("layers_of_pp_rank_", p),
        absl::StrCat(
            "these are the layers of pipeline rank ", p,
            ": with pipeline_model_parallel_layout, some versions of Megatron always return those of the calling "
            "rank"),
        std::move(layers));
  }
}

}  // namespace

absl::StatusOr<std::vector<RowWay>> RowWays(const MicroBatchLayout& layout, const RowRank& rank) {
  RR_ASSIGN_OR_RETURN(const RowMap right, BuildRowMap(layout, rank));
  RowCatalogue catalogue(layout, rank, ExpandRowMap(right));
  catalogue.AddShifted(Early(), Late(), 1);
  catalogue.AddShifted(Late(), Early(), -1);
  AddPartitions(layout, catalogue);
  AddSequenceParallel(layout, catalogue);
  AddOrders(layout, catalogue);
  AddPaddings(layout, catalogue);
  AddRanks(layout, rank, catalogue);
  return catalogue.Take();
}

absl::StatusOr<std::vector<LayerWay>> LayerWays(const Geometry& geometry, const LayerSplit& split,
                                                const PlanRank& rank) {
  RR_ASSIGN_OR_RETURN(const LayerTable table, LayerTable::Create(split));
  auto right = OwnedMoeLayers(geometry, table, rank.pp_rank, rank.chunk);
  if (right.ok()) right = WithoutNativeLayers(geometry, *std::move(right), rank.native_layers);
  if (!right.ok()) return right.status();
  LayerCatalogue catalogue(geometry, *right);
  AddNumberings(geometry, *right, catalogue);
  AddSplits(geometry, table, split, rank, catalogue);
  return catalogue.Take();
}

std::vector<LayerWay> LayerWays(const Geometry& geometry, const std::vector<OwnedLayer>& layers) {
  LayerCatalogue catalogue(geometry, layers);
  AddNumberings(geometry, layers, catalogue);
  return catalogue.Take();
}

}  // namespace routing_replay::trainer
