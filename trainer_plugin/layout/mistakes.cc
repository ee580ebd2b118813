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
bool Same(const LocalRow& a, const LocalRow& b) {
  const bool replayed = a.state == RowState::kReplayed;
  return replayed == (b.state == RowState::kReplayed) && (!replayed || (a.sequence == b.sequence && a.row == b.row));
}
bool Same(int32_t a, int32_t b) { return a == b; }

// Collects the mistakes by which a rank gets other parts (rows or layers) than the correct ones.
template <typename Part>
class Catalogue {
 public:
  // A mistake that leads to fewer parts than the rank has is filled up with `none`; one that leads to more is cut.
  Catalogue(const char* what, std::vector<Part> right, Part none) : none_(none) {
    ways_.push_back({{"none"}, what, {"none", what}, std::move(right)});
  }

  void Add(const Mistake& mistake, const Mistake& reversed, std::vector<Part> seen) {
    seen.resize(right().size(), none_);
    const auto known = std::find_if(ways_.begin(), ways_.end(), [&](const Way<Part>& way) {
      return std::equal(way.seen.begin(), way.seen.end(), seen.begin(),
                        [](const Part& a, const Part& b) { return Same(a, b); });
    });
    if (known == ways_.end()) {
      ways_.push_back({{mistake.name}, mistake.what, reversed, std::move(seen)});
    } else if (known != ways_.begin()) {
      known->mistakes.push_back(mistake.name);
    }
  }

  const std::vector<Part>& right() const { return ways_.front().seen; }
  std::vector<Way<Part>> Take() { return std::move(ways_); }

 private:
  Part none_;
  std::vector<Way<Part>> ways_;
};

class RowCatalogue : public Catalogue<LocalRow> {
 public:
  RowCatalogue(const MicroBatchLayout& layout, const RowRank& rank, std::vector<LocalRow> right)
      : Catalogue("the rows that this rank's router should see", std::move(right), {}), layout_(layout), rank_(rank) {}

  // Adds the rows of another layout or rank. If that layout is invalid, the mistake is impossible.
  void AddChange(const Mistake& mistake, const Mistake& reversed,
                 const std::function<void(MicroBatchLayout&, RowRank&)>& change) {
    MicroBatchLayout layout = layout_;
    RowRank rank = rank_;
    change(layout, rank);
    const absl::StatusOr<RowMap> map = BuildRowMap(layout, rank);
    if (map.ok()) Add(mistake, reversed, ExpandRowMap(*map));
  }

 private:
  const MicroBatchLayout& layout_;
  const RowRank& rank_;
};

// Adds the correct rows shifted by one row.
void AddShifts(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  const auto shifted = [&](int32_t by) {
    std::vector<LocalRow> rows = catalogue.right();
    for (LocalRow& row : rows) {
      if (row.state == RowState::kPad) continue;
      row.row += by;
      const bool recorded = row.row >= 0 && row.row < layout.sequences[row.sequence].recorded_rows;
      row.state = recorded ? RowState::kReplayed : RowState::kUnrecorded;
    }
    return rows;
  };
  const Mistake early{"one_row_early", "each token got the route of the token after it"};
  const Mistake late{"one_row_late", "each token got the route of the token before it"};
  catalogue.Add(early, late, shifted(1));
  catalogue.Add(late, early, shifted(-1));
}

void AddPartitions(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  if (layout.cp_size == 1) return;
  const auto cut = [](absl::string_view rows, absl::string_view tokens) -> Mistake {
    return {absl::StrCat("partition_", rows),
            absl::StrCat("rows were cut as ", rows, ", but the model's tokens as ", tokens)};
  };
  for (const Partition partition : {Partition::kContiguous, Partition::kContiguousPerSequence,
                                    Partition::kZigzagPerDocument, Partition::kZigzagPerSequence}) {
    const absl::string_view ours = NameOf(partition), model = NameOf(layout.partition);
    catalogue.AddChange(cut(ours, model), cut(model, ours),
                        [partition](MicroBatchLayout& l, RowRank&) { l.partition = partition; });
  }
  catalogue.AddChange(
      {"no_context_parallel_slice", "rows were not sliced for context parallelism: each rank got the first rows"},
      {"context_parallel_slice", "rows were sliced for context parallelism, but the model's tokens are not"},
      [](MicroBatchLayout& l, RowRank& r) {
        l.cp_size = 1;
        r.cp_rank = 0;
      });
}

void AddSequenceParallel(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  if (layout.tp_size == 1) return;
  const Mistake no_slice{"no_sequence_parallel_slice",
                         "rows were not sliced for sequence parallelism: each tensor-parallel rank got the first rows"};
  const Mistake slice{"sequence_parallel_slice",
                      "rows were sliced by tensor-parallel rank although sequence parallelism is off"};
  catalogue.AddChange(layout.sequence_parallel ? no_slice : slice, layout.sequence_parallel ? slice : no_slice,
                      [](MicroBatchLayout& l, RowRank&) {
                        l.sequence_parallel = !l.sequence_parallel;
                        l.target_rows.reset();
                      });
}

void AddOrders(const MicroBatchLayout& layout, RowCatalogue& catalogue) {
  const Mistake batch_major{
      "batch_major",
      "the batch was flattened batch-major (b·S + s), but Megatron's router sees sequence-major rows (s·B + b)"};
  const Mistake sequence_major{"sequence_major",
                               "rows were put in sequence-major order, but the router's are batch-major"};
  const bool right = layout.row_order == RowOrder::kSequenceMajor;
  if (layout.format == TokenFormat::kBshd && layout.batch_size > 1) {
    catalogue.AddChange(right ? batch_major : sequence_major, right ? sequence_major : batch_major,
                        [right](MicroBatchLayout& l, RowRank&) {
                          l.row_order = right ? RowOrder::kBatchMajor : RowOrder::kSequenceMajor;
                        });
    catalogue.AddChange({"batch_major_sliced_per_sequence",
                         "the batch was flattened batch-major, after a sequence-parallel slice of each sequence"},
                        sequence_major, [](MicroBatchLayout& l, RowRank&) {
                          l.row_order = RowOrder::kBatchMajor;
                          l.sp_slice = SpSlice::kBeforeFlatten;
                        });
  }
  if (layout.tokens_per_sample) {
    catalogue.AddChange(
        {"tokens_per_sample_ignored", "packed rows were not un-flattened to tokens_per_sample as the MoE layer does"},
        {"tokens_per_sample", "packed rows were un-flattened to tokens_per_sample, but those of the MoE layer are not"},
        [](MicroBatchLayout& l, RowRank&) { l.tokens_per_sample.reset(); });
  }
}

// Sets the length of each document to `length` of its sequence; the rest of the stream is one padding document.
void SetDocuments(MicroBatchLayout& layout, int64_t SequenceShape::*length) {
  layout.cu_seqlens_padded = {0};
  for (SequenceShape& sequence : layout.sequences) {
    const int64_t rows = sequence.*length;
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
    catalogue.AddChange(
        {"left_padding_stripped", "left padding was removed from the rows, but the model's input has it"},
        {"left_padding_kept", "rows were padded on the left, but the model's input is not"},
        [](MicroBatchLayout& l, RowRank&) {
          for (SequenceShape& sequence : l.sequences) sequence.first_row = 0;
        });
  }
  if (layout.format != TokenFormat::kThd) {
    catalogue.AddChange(
        {"left_padding_kept", "rows were padded on the left, but the model's rectangle on the right"},
        {"left_padding_stripped", "rows were padded on the right, but the model's rectangle on the left"},
        [](MicroBatchLayout& l, RowRank&) {
          for (SequenceShape& sequence : l.sequences) sequence.first_row = l.padded_length - sequence.tokens;
        });
    return;
  }
  catalogue.AddChange(
      {"padding_between_documents_ignored",
       "rows of the samples were joined without the padding of each document (cu_seqlens without padding instead of "
       "padded ones)"},
      {"padding_between_documents", "rows were placed as if documents were padded, but the model's have no padding"},
      [](MicroBatchLayout& l, RowRank&) { SetDocuments(l, &SequenceShape::tokens); });
  catalogue.AddChange(
      {"joined_recorded_rows",
       "recorded rows were joined, one less per sample than its tokens: each sample is shifted one row more than the "
       "sample before it"},
      {"joined_tokens", "each document was assumed to be one token longer than the model's"},
      [](MicroBatchLayout& l, RowRank&) { SetDocuments(l, &SequenceShape::recorded_rows); });
}

// Adds the rows of the other ranks of a parallel group. `place`: the field with the rank's number in this group.
void AddOtherRanks(const RowRank& rank, int32_t RowRank::*place, int32_t size, absl::string_view name,
                   absl::string_view group, RowCatalogue& catalogue) {
  const int32_t own = rank.*place;
  const auto name_of = [&](int32_t number) { return absl::StrCat("rows_of_", name, "_rank_", number); };
  const auto rows_of = [&](int32_t number) { return absl::StrCat("these are the rows of ", group, " rank ", number); };
  for (int32_t other = 0; other < size; ++other) {
    if (other == own) continue;
    catalogue.AddChange({name_of(other), rows_of(other)},
                        {name_of(own), absl::StrCat(rows_of(own), ", but the model's are those of rank ", other)},
                        [place, other](MicroBatchLayout&, RowRank& r) { r.*place = other; });
  }
}

void AddRanks(const MicroBatchLayout& layout, const RowRank& rank, RowCatalogue& catalogue) {
  AddOtherRanks(rank, &RowRank::cp_rank, layout.cp_size, "cp", "context-parallel", catalogue);
  if (layout.sequence_parallel) {
    AddOtherRanks(rank, &RowRank::tp_rank, layout.tp_size, "tp", "tensor-parallel", catalogue);
  }
  catalogue.AddChange(
      {"not_sliced_at_all", "rows were not sliced for any kind of parallelism: each rank got the first rows"},
      {"sliced", "rows were sliced, but the model's are not: each rank has all of them"},
      [](MicroBatchLayout& l, RowRank& r) {
        l.cp_size = 1;
        l.sequence_parallel = false;
        l.target_rows.reset();
        r = {};
      });
}

std::vector<int32_t> IdsOf(const std::vector<OwnedLayer>& owned) {
  std::vector<int32_t> ids;
  ids.reserve(owned.size());
  for (const OwnedLayer& layer : owned) ids.push_back(layer.layer_id);
  return ids;
}

class LayerCatalogue : public Catalogue<int32_t> {
 public:
  LayerCatalogue(const Geometry& geometry, const std::vector<OwnedLayer>& right)
      : Catalogue("the layers that this rank has", IdsOf(right), -1), geometry_(geometry) {}

  // Adds a mistake whose opposite has no name of its own.
  void AddGuess(const Mistake& guess, std::vector<int32_t> layers) {
    Add(guess, {guess.name, absl::StrCat("the model's layers match the record under this assumption: ", guess.what)},
        std::move(layers));
  }

  // Adds the mistake that replaces each correct layer by `change` of that layer.
  void AddEach(const Mistake& mistake, const Mistake& reversed, const std::function<int32_t(int32_t layer)>& change) {
    std::vector<int32_t> layers = right();
    for (int32_t& layer : layers) layer = change(layer);
    Add(mistake, reversed, std::move(layers));
  }

  // Adds the layers that the rank would have under `split`. Adds nothing if the split is not valid.
  void AddSplit(const Mistake& guess, const LayerSplit& split, const PlanRank& rank) {
    const absl::StatusOr<LayerTable> table = LayerTable::Create(split);
    if (!table.ok()) return;
    const std::optional<int32_t> chunk = table->virtual_stages() == 1 ? std::nullopt : rank.chunk;
    const auto owned = OwnedMoeLayers(geometry_, *table, std::min(rank.pp_rank, split.pipeline_size - 1), chunk);
    if (owned.ok()) AddGuess(guess, IdsOf(*owned));
  }

 private:
  const Geometry& geometry_;
};

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
  std::vector<int32_t> ids;
  for (int32_t layer = range.begin; layer < range.end; ++layer) {
    if (geometry.FindOrdinal(layer)) ids.push_back(layer);
  }
  return ids;
}

void AddNumberings(const Geometry& geometry, const std::vector<OwnedLayer>& right, LayerCatalogue& catalogue) {
  std::vector<int32_t> ids, first_stage, constructed, adjacent;
  for (const LayerRouting& layer : geometry.layers()) ids.push_back(layer.layer_id);
  const auto moe_layers = static_cast<int32_t>(ids.size());
  const int32_t dense = geometry.num_layers() - moe_layers;
  const auto layer_of = [&](int32_t ordinal) { return ordinal < moe_layers ? ids[ordinal] : -1; };
  const auto ordinal_of = [&](int32_t layer) { return *geometry.FindOrdinal(layer); };
  for (int32_t i = 0; i < static_cast<int32_t>(right.size()); ++i) {
    first_stage.push_back(layer_of(i));
    constructed.push_back(i);
    adjacent.push_back(right.front().layer_id + i);
  }
  const Mistake layer_number{"layer_number_as_index",
                             "Megatron's layer_number, which counts from 1, was used as the index"};
  const Mistake layer_before{"one_layer_before", "each layer got the routes of the layer before it"};
  const Mistake moe_ordinal{"moe_ordinal_as_layer",
                            "the router's number was used as a decoder layer, although it does not count dense layers"};
  const Mistake decoder_layer{"layer_as_moe_ordinal",
                              "the decoder layer was used as an index of MoE layers, although it counts dense layers"};
  const auto columns = [](absl::string_view which) -> Mistake {
    return {absl::StrCat(which, "_columns"),
            absl::StrCat("the rows have ids for every decoder layer, and those of the ", which,
                         " layers were used for the MoE layers")};
  };
  catalogue.AddEach(layer_number, layer_before, [](int32_t layer) { return layer + 1; });
  catalogue.AddEach(moe_ordinal, decoder_layer, ordinal_of);
  catalogue.AddEach(decoder_layer, moe_ordinal, layer_of);
  catalogue.AddEach(columns("last"), columns("first"), [&](int32_t layer) { return ordinal_of(layer) + dense; });
  catalogue.AddGuess(
      {"no_pipeline_offset",
       "MoE layers were counted from the start of each stage: every stage got the layers of the first stage"},
      std::move(first_stage));
  catalogue.AddGuess(
      {"construction_order",
       "routers were numbered in the order of their construction, and the number was used as a decoder layer"},
      std::move(constructed));
  catalogue.AddGuess(
      {"dense_layers_counted", "MoE layers were assumed to follow each other without dense layers in between"},
      std::move(adjacent));
  catalogue.AddEach(layer_before, layer_number, [](int32_t layer) { return layer - 1; });
}

void AddSplits(const Geometry& geometry, const LayerTable& table, const LayerSplit& split, const PlanRank& rank,
               LayerCatalogue& catalogue) {
  const auto layers_of = [&](int32_t pp_rank, std::optional<int32_t> chunk) {
    return IdsOf(*OwnedMoeLayers(geometry, table, pp_rank, chunk));
  };
  if (table.virtual_stages() > 1) {
    catalogue.AddGuess(
        {"chunks_side_by_side", "virtual stages were ignored: the chunks of a rank were assumed to be adjacent"},
        ChunksSideBySide(geometry, table, rank.pp_rank, rank.chunk));
    catalogue.AddGuess({"first_chunk_only", "every chunk got the layers of the rank's first chunk"},
                       layers_of(rank.pp_rank, 0));
  }
  catalogue.AddSplit(
      {"even_split", "layers were split evenly over the stages"},
      {.num_layers = split.num_layers, .pipeline_size = split.pipeline_size, .virtual_stages = table.virtual_stages()},
      rank);
  LayerSplit decoder_alone = split;
  decoder_alone.account_for_embedding = decoder_alone.account_for_loss = false;
  catalogue.AddSplit({"embedding_and_loss_ignored", "embedding and loss were not counted in the split"}, decoder_alone,
                     rank);
  for (int32_t p = 0; p < split.pipeline_size; ++p) {
    if (p == rank.pp_rank) continue;
    catalogue.AddGuess(
        {absl::StrCat("layers_of_pp_rank_", p),
         absl::StrCat("these are the layers of pipeline rank ", p,
                      ": with pipeline_model_parallel_layout, some versions of Megatron always return those of the "
                      "calling rank")},
        layers_of(p, rank.chunk));
  }
}

}  // namespace

absl::StatusOr<std::vector<RowWay>> RowWays(const MicroBatchLayout& layout, const RowRank& rank) {
  RR_ASSIGN_OR_RETURN(const RowMap right, BuildRowMap(layout, rank));
  RowCatalogue catalogue(layout, rank, ExpandRowMap(right));
  AddShifts(layout, catalogue);
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

}  // namespace routing_replay::trainer
