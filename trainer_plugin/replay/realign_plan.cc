#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/replay/staged_cut.h"

namespace routing_replay::trainer {
namespace {

// Consecutive local rows that show consecutive rows of one sequence.
struct Run {
  RowRange rows;
  int64_t local_row = 0;
};

// Everything of one sequence that takes part. Runs are sorted by their first row and may overlap.
struct SequenceWork {
  std::vector<Run> runs;
  std::vector<int32_t> pieces;
  int64_t longest_run = 0;
};

absl::Status Refuse(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("realign.", field, ": ", what),
                   {.reason = reason, .field = absl::StrCat("realign.", field)});
}

absl::Status CheckPiece(const BufferLayout& layout, const RealignInput& input, int32_t index) {
  const StagedPiece& piece = input.pieces[index];
  const auto refuse = [index](Reason reason, absl::string_view what) {
    return Refuse(reason, "pieces", absl::StrCat("piece ", index, ": ", what));
  };
  if (piece.sequence < 0 || static_cast<size_t>(piece.sequence) >= input.unrecorded.size()) {
    return refuse(Reason::kField, absl::StrCat("sequence ", piece.sequence, " does not exist"));
  }
  if (piece.layer_begin < 0 || piece.layer_count < 1 || piece.layer_begin >= layout.num_layers() ||
      piece.layer_count > layout.num_layers() - piece.layer_begin) {
    return refuse(Reason::kField, absl::StrCat(piece.layer_count, " layers from slot ", piece.layer_begin,
                                               " are not among the ", layout.num_layers(), " local ones"));
  }
  if (piece.rows.empty() || !RowRange{0, kMaxRows}.contains(piece.rows)) {
    return refuse(Reason::kField, absl::StrCat("rows ", ToString(piece.rows), " cannot be"));
  }
  const bool known_codec = piece.codec == Codec::kRaw || piece.codec == Codec::kPacked;
  const int32_t max_bit_offset = piece.codec == Codec::kPacked ? 7 : 0;
  if (!known_codec || piece.bit_offset < 0 || piece.bit_offset > max_bit_offset) {
    return refuse(Reason::kField, absl::StrCat("codec ", static_cast<int>(piece.codec), " with bit offset ",
                                               piece.bit_offset, " cannot be"));
  }
  const int64_t bytes = PieceBytes(layout, piece);
  if (piece.offset < 0 || piece.offset > input.staging_bytes || bytes > input.staging_bytes - piece.offset) {
    return refuse(Reason::kLength, absl::StrCat(bytes, " bytes at ", piece.offset, " are not inside the ",
                                                input.staging_bytes, " staged"));
  }
  return absl::OkStatus();
}

absl::Status CheckRowMap(const BufferLayout& layout, const RealignInput& input) {
  if (static_cast<int64_t>(input.row_map.size()) != layout.rows()) {
    return Refuse(Reason::kLength, "row_map",
                  absl::StrCat("has ", input.row_map.size(), " rows, the layout ", layout.rows()));
  }
  for (size_t i = 0; i < input.row_map.size(); ++i) {
    const LocalRow& row = input.row_map[i];
    if (row.state > RowState::kLive) return Refuse(Reason::kField, "row_map", absl::StrCat("state of local row ", i));
    if (row.state != RowState::kReplayed) continue;
    if (row.sequence < 0 || static_cast<size_t>(row.sequence) >= input.unrecorded.size() || row.row < 0 ||
        row.row >= kMaxRows) {
      return Refuse(Reason::kField, "row_map",
                    absl::StrCat("local row ", i, " shows row ", row.row, " of sequence ", row.sequence));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const BufferLayout& layout, const RealignInput& input) {
  for (const std::vector<RowRange>& ranges : input.unrecorded) {
    if (auto s = CheckNormal(ranges, {0, kMaxRows}); !s.ok()) return Refuse(Reason::kField, "unrecorded", s.message());
  }
  for (size_t i = 0; i < input.pieces.size(); ++i) {
    if (auto s = CheckPiece(layout, input, static_cast<int32_t>(i)); !s.ok()) return s;
  }
  return CheckRowMap(layout, input);
}

// States with the declared rows taken out, and the runs of what is left.
std::vector<SequenceWork> FindRuns(const RealignInput& input, RealignPlan& plan) {
  std::vector<SequenceWork> work(input.unrecorded.size());
  const auto& map = input.row_map;
  plan.states.reserve(map.size());
  for (const LocalRow& row : map) plan.states.push_back(row.state);
  for (size_t i = 0; i < map.size();) {
    size_t end = i + 1;
    if (map[i].state != RowState::kReplayed) {
      i = end;
      continue;
    }
    const auto follows = [&](const LocalRow& a, const LocalRow& b) {
      return b.state == RowState::kReplayed && b.sequence == a.sequence && b.row == a.row + 1;
    };
    while (end < map.size() && follows(map[end - 1], map[end])) ++end;
    const RowRange rows = RowRange::OfSize(map[i].row, static_cast<int64_t>(end - i));
    SequenceWork& sequence = work[map[i].sequence];
    const auto& holes = input.unrecorded[map[i].sequence];
    for (RowRange part : Subtract(rows, holes)) {
      sequence.runs.push_back({part, static_cast<int64_t>(i) + part.begin - rows.begin});
      sequence.longest_run = std::max(sequence.longest_run, part.size());
    }
    for (RowRange hole : Clip(holes, rows)) {
      std::fill_n(plan.states.begin() + i + (hole.begin - rows.begin), hole.size(), RowState::kUnrecorded);
    }
    i = end;
  }
  for (SequenceWork& sequence : work) {
    std::sort(sequence.runs.begin(), sequence.runs.end(),
              [](const Run& a, const Run& b) { return a.rows.begin < b.rows.begin; });
  }
  return work;
}

// What the pieces of one sequence deliver for one slot, as a normal list.
absl::StatusOr<std::vector<RowRange>> FindDelivered(const RealignInput& input, const SequenceWork& sequence,
                                                    int32_t slot) {
  std::vector<RowRange> ranges;
  for (int32_t index : sequence.pieces) {
    const StagedPiece& piece = input.pieces[index];
    if (slot >= piece.layer_begin && slot - piece.layer_begin < piece.layer_count) ranges.push_back(piece.rows);
  }
  std::sort(ranges.begin(), ranges.end(), [](RowRange a, RowRange b) { return a.begin < b.begin; });
  std::vector<RowRange> delivered;
  for (RowRange range : ranges) {
    if (!delivered.empty() && range.begin < delivered.back().end) {
      return Refuse(Reason::kField, "pieces", absl::StrCat("rows ", ToString(range), " of a layer overlap others"));
    }
    AppendMerged(delivered, range);
  }
  return delivered;
}

// The rows that all runs together show, as a normal list.
std::vector<RowRange> FindNeeded(const SequenceWork& sequence) {
  std::vector<RowRange> needed;
  for (const Run& run : sequence.runs) {
    const int64_t covered = needed.empty() ? run.rows.begin : std::max(run.rows.begin, needed.back().end);
    AppendMerged(needed, {covered, std::max(covered, run.rows.end)});
  }
  return needed;
}

absl::Status CheckDelivered(const BufferLayout& layout, const RealignInput& input, const SequenceWork& sequence,
                            int32_t sequence_index) {
  const std::vector<RowRange> needed = FindNeeded(sequence);
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
    const auto delivered = FindDelivered(input, sequence, slot);
    if (!delivered.ok()) return delivered.status();
    ErrorDetail detail{.reason = Reason::kNotCommitted, .field = "realign.pieces"};
    for (RowRange range : needed) {
      const std::vector<RowRange> missing = Subtract(range, *delivered);
      detail.missing_rows.insert(detail.missing_rows.end(), missing.begin(), missing.end());
    }
    if (detail.missing_rows.empty()) continue;
    detail.layer = layout.layer(slot).layer_id;
    detail.row = detail.missing_rows.front().begin;
    return MakeError(
        absl::StatusCode::kFailedPrecondition,
        absl::StrCat("realign: ", TotalRows(detail.missing_rows), " rows of sequence ", sequence_index, " from row ",
                     *detail.row, " on are not staged for layer ", *detail.layer, " and not declared unrecorded"),
        detail);
  }
  return absl::OkStatus();
}

void AddCopies(const RealignInput& input, const SequenceWork& sequence, std::vector<RealignCopy>& copies) {
  for (int32_t index : sequence.pieces) {
    const RowRange rows = input.pieces[index].rows;
    // Sorted by begin, a run that starts more than the longest run's length earlier cannot reach the piece.
    auto run = std::lower_bound(sequence.runs.begin(), sequence.runs.end(), rows.begin - sequence.longest_run,
                                [](const Run& r, int64_t begin) { return r.rows.begin < begin; });
    for (; run != sequence.runs.end() && run->rows.begin < rows.end; ++run) {
      const RowRange part = Intersect(run->rows, rows);
      if (part.empty()) continue;
      copies.push_back({.piece = index,
                        .first_row = part.begin - rows.begin,
                        .rows = part.size(),
                        .local_row = run->local_row + part.begin - run->rows.begin});
    }
  }
}

void FillLastRows(const RealignInput& input, RealignPlan& plan) {
  const auto sequences = static_cast<int32_t>(std::min(input.last_rows.size(), input.unrecorded.size()));
  for (size_t i = 0; i < input.row_map.size(); ++i) {
    const LocalRow& row = input.row_map[i];
    if (row.state != RowState::kUnrecorded || row.sequence >= sequences || row.row != input.last_rows[row.sequence]) {
      continue;
    }
    if (Clip(input.unrecorded[row.sequence], RowRange::OfSize(row.row, 1)).empty()) plan.states[i] = RowState::kPad;
  }
}

void AddFills(RealignPlan& plan) {
  int64_t ordinal = 0;
  for (RowState kind : {RowState::kPad, RowState::kUnrecorded, RowState::kLive}) {
    for (size_t i = 0; i < plan.states.size(); ++i) {
      if (plan.states[i] == kind) plan.fills.push_back({static_cast<int64_t>(i), ordinal++});
    }
  }
}

}  // namespace

absl::StatusOr<RealignPlan> PlanRealign(const BufferLayout& layout, const RealignInput& input) {
  if (auto s = CheckInput(layout, input); !s.ok()) return s;
  RealignPlan plan;
  std::vector<SequenceWork> work = FindRuns(input, plan);
  for (size_t i = 0; i < input.pieces.size(); ++i) {
    work[input.pieces[i].sequence].pieces.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < work.size(); ++i) {
    if (auto s = CheckDelivered(layout, input, work[i], static_cast<int32_t>(i)); !s.ok()) return s;
    AddCopies(input, work[i], plan.copies);
  }
  FillLastRows(input, plan);
  AddFills(plan);
  plan.staging_bytes = input.staging_bytes;
  plan.pieces.assign(input.pieces.begin(), input.pieces.end());
  plan.replayed_rows = std::count(plan.states.begin(), plan.states.end(), RowState::kReplayed);
  plan.unrecorded_rows = std::count(plan.states.begin(), plan.states.end(), RowState::kUnrecorded);
  plan.pad_rows = std::count(plan.states.begin(), plan.states.end(), RowState::kPad);
  return plan;
}

}  // namespace routing_replay::trainer
