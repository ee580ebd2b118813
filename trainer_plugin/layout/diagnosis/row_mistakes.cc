#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/layout/diagnosis/mistakes.h"
#include "trainer_plugin/layout/names.h"

namespace routing_replay::trainer {
bool SameRow(const LocalRow& a, const LocalRow& b) {
  const bool replayed = a.state == RowState::kReplayed;
  return replayed == (b.state == RowState::kReplayed) && (!replayed || (a.sequence == b.sequence && a.row == b.row));
}

namespace {

bool SameRows(const std::vector<LocalRow>& a, const std::vector<LocalRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), SameRow);
}

// Collects what leads elsewhere. Rows of a mistake come in any number and are cut, or padded, to the local rows.
class RowCatalogue {
 public:
  RowCatalogue(const MicroBatchLayout& layout, const RowRank& rank, std::vector<LocalRow> right)
      : layout_(layout), rank_(rank) {
    const char* what = "the rows that this rank's router should see";
    ways_.push_back({{"none"}, what, {"none", what}, std::move(right)});
  }

  // The rows of another layout or rank. One that cannot be built is no mistake that somebody could have made.
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

  // Each row of the right way shows the one `by` further on.
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
    catalogue.Add(
        absl::StrCat("partition_", name),
        absl::StrCat("context parallelism was taken for ", name, ", the tokens are ", NameOf(layout.partition)),
        {absl::StrCat("partition_", NameOf(layout.partition)),
         absl::StrCat("context parallelism was taken for ", NameOf(layout.partition), ", the tokens are ", name)},
        [partition](MicroBatchLayout& l, RowRank&) { l.partition = partition; });
  }
  catalogue.Add("no_context_parallel_slice",
                "the rows were not sliced for context parallelism: each rank got the first ones",
                {"context_parallel_slice", "rows were sliced for context parallelism, the model's tokens are not"},
                [](MicroBatchLayout& l, RowRank& r) {
                  l.cp_size = 1;
                  r.cp_rank = 0;
                });
}

Mistake NoSlice() {
  return {"no_sequence_parallel_slice",
          "the sequence-parallel slice is missing: every tensor-parallel rank got the first rows"};
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
          "the batch was flattened batch-major (b·S + s); Megatron's router sees sequence-major rows (s·B + b)"};
}
Mistake SequenceMajor() {
  return {"sequence_major", "rows were taken in sequence-major order, the router's are batch-major"};
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
    catalogue.Add("tokens_per_sample_ignored",
                  "packed rows were not un-flattened to tokens_per_sample as the MoE layer does",
                  {"tokens_per_sample", "packed rows were un-flattened to tokens_per_sample, the MoE layer does not"},
                  [](MicroBatchLayout& l, RowRank&) { l.tokens_per_sample.reset(); });
  }
}

// Documents of other lengths than the padded ones, the rest being one document of padding.
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
    catalogue.Add("left_padding_stripped", "left padding was stripped before alignment, the model sees it",
                  {"left_padding_kept", "rows were left-padded, the model does not see the padding"},
                  [](MicroBatchLayout& l, RowRank&) {
                    for (SequenceShape& sequence : l.sequences) sequence.first_row = 0;
                  });
  }
  if (layout.format != TokenFormat::kThd) {
    catalogue.Add("left_padding_kept", "rows were left-padded, the model's rectangle is padded on the right",
                  {"left_padding_stripped", "rows were padded on the right, the model's rectangle is on the left"},
                  [](MicroBatchLayout& l, RowRank&) {
                    for (SequenceShape& sequence : l.sequences) sequence.first_row = l.padded_length - sequence.tokens;
                  });
    return;
  }
  catalogue.Add(
      "padding_between_documents_ignored",
      "rows of the samples were joined without the padding that each document has (real cu_seqlens in place of "
      "the padded ones)",
      {"padding_between_documents", "documents were taken for padded, the model's follow each other without padding"},
      [](MicroBatchLayout& l, RowRank&) {
        SetDocuments(l, [](const SequenceShape& sequence) { return sequence.tokens; });
      });
  catalogue.Add(
      "joined_recorded_rows",
      "the recorded rows were joined: each sample has one less than tokens, so every sample is shifted by one "
      "row more",
      {"joined_tokens", "documents were taken for longer than the model's, which have one token less each"},
      [](MicroBatchLayout& l, RowRank&) {
        SetDocuments(l, [](const SequenceShape& sequence) { return sequence.recorded_rows; });
      });
}

void AddRanks(const MicroBatchLayout& layout, const RowRank& rank, RowCatalogue& catalogue) {
  for (int32_t cp = 0; cp < layout.cp_size; ++cp) {
    if (cp == rank.cp_rank) continue;
    catalogue.Add(
        absl::StrCat("rows_of_cp_rank_", cp), absl::StrCat("these are the rows of context-parallel rank ", cp),
        {absl::StrCat("rows_of_cp_rank_", rank.cp_rank),
         absl::StrCat("these are the rows of context-parallel rank ", rank.cp_rank, ", the model's those of ", cp)},
        [cp](MicroBatchLayout&, RowRank& r) { r.cp_rank = cp; });
  }
  for (int32_t tp = 0; layout.sequence_parallel && tp < layout.tp_size; ++tp) {
    if (tp == rank.tp_rank) continue;
    catalogue.Add(
        absl::StrCat("rows_of_tp_rank_", tp), absl::StrCat("these are the rows of tensor-parallel rank ", tp),
        {absl::StrCat("rows_of_tp_rank_", rank.tp_rank),
         absl::StrCat("these are the rows of tensor-parallel rank ", rank.tp_rank, ", the model's those of ", tp)},
        [tp](MicroBatchLayout&, RowRank& r) { r.tp_rank = tp; });
  }
  catalogue.Add("not_sliced_at_all", "the rows were sliced for no kind of parallelism: each rank got the first ones",
                {"sliced", "rows were sliced, the model's are not: each rank has all of them"},
                [](MicroBatchLayout& l, RowRank& r) {
                  l.cp_size = 1;
                  l.sequence_parallel = false;
                  l.target_rows.reset();
                  r = {};
                });
}

Mistake Early() { return {"one_row_early", "each token got the route of the token after it"}; }
Mistake Late() { return {"one_row_late", "each token got the route of the token before it"}; }

}  // namespace

absl::StatusOr<std::vector<RowWay>> RowWays(const MicroBatchLayout& layout, const RowRank& rank) {
  const absl::StatusOr<RowMap> right = BuildRowMap(layout, rank);
  if (!right.ok()) return right.status();
  RowCatalogue catalogue(layout, rank, ExpandRowMap(*right));
  catalogue.AddShifted(Early(), Late(), 1);
  catalogue.AddShifted(Late(), Early(), -1);
  AddPartitions(layout, catalogue);
  AddSequenceParallel(layout, catalogue);
  AddOrders(layout, catalogue);
  AddPaddings(layout, catalogue);
  AddRanks(layout, rank, catalogue);
  return catalogue.Take();
}

}  // namespace routing_replay::trainer
