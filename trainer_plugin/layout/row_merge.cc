#include "routing_replay/trainer/row_merge.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/row_run.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckRun(const MicroBatchLayout& layout, size_t record, const RowMap& map, const RowRun& run) {
  const auto refuse = [record](absl::string_view what) {
    return Invalid("records", absl::StrCat("record ", record, " ", what));
  };
  if (run.sequence < 0 || static_cast<size_t>(run.sequence) >= layout.sequences.size()) {
    return refuse(absl::StrCat("shows sequence ", run.sequence, " of ", layout.sequences.size()));
  }
  const int64_t rows = layout.sequences[run.sequence].recorded_rows;
  if (run.row < 0 || run.row > rows || run.count > rows - run.row) {
    return refuse(absl::StrCat("shows ", run.count, " rows from row ", run.row, " of sequence ", run.sequence,
                               ", which has ", rows));
  }
  if (run.stride < 1 || run.local_row < 0 || run.local_row >= map.rows ||
      run.count - 1 > (map.rows - 1 - run.local_row) / run.stride) {
    return refuse(absl::StrCat("has ", run.count, " rows from local row ", run.local_row, " of ", map.rows));
  }
  return absl::OkStatus();
}

// The recorded runs of each sequence, ascending by row; those of one row in the order of the records.
absl::StatusOr<std::vector<std::vector<RecordRun>>> RunsBySequence(const MicroBatchLayout& layout,
                                                                   absl::Span<const RowMap> maps) {
  std::vector<std::vector<RecordRun>> runs(layout.sequences.size());
  for (size_t i = 0; i < maps.size(); ++i) {
    for (const RowRun& run : maps[i].runs) {
      if (run.state != RowState::kReplayed || run.count < 1) continue;
      if (auto s = CheckRun(layout, i, maps[i], run); !s.ok()) return s;
      runs[run.sequence].push_back({static_cast<int32_t>(i), run});
    }
  }
  for (std::vector<RecordRun>& of : runs) {
    std::stable_sort(of.begin(), of.end(),
                     [](const RecordRun& a, const RecordRun& b) { return a.run.row < b.run.row; });
  }
  return runs;
}

absl::Status Missing(absl::string_view sample, size_t sequence, const std::vector<RowRange>& rows) {
  ErrorDetail detail{.reason = Reason::kNotCommitted, .field = "records", .sample = std::string(sample)};
  detail.row = rows.front().begin;
  detail.missing_rows = rows;
  const std::string name = sample.empty() ? "" : absl::StrCat(" (", sample, ")");
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("records: ", TotalRows(rows), " rows of sequence ", sequence, name, " from row ",
                                rows.front().begin, " on are on no rank"),
                   detail);
}

// Divides the runs into those that go on where the rows so far end, and copies of rows that are there already; adds the
// rows that none has to `missing`.
SequenceMerge MergeRuns(int64_t rows, const std::vector<RecordRun>& runs, std::vector<RowRange>& missing) {
  SequenceMerge merge;
  int64_t end = 0;
  for (const auto& [record, run] : runs) {
    const int64_t known = std::clamp<int64_t>(end - run.row, 0, run.count);
    if (known > 0) merge.copies.push_back({record, SubRun(run, 0, known)});
    if (known == run.count) continue;
    AppendMerged(missing, {end, run.row + known});
    merge.runs.push_back({record, SubRun(run, known, run.count)});
    end = run.row + run.count;
  }
  AppendMerged(missing, {end, rows});
  return merge;
}

}  // namespace

absl::StatusOr<std::vector<SequenceMerge>> MergeRows(const MicroBatchLayout& layout, absl::Span<const RowMap> maps,
                                                     absl::Span<const std::string> samples) {
  if (!samples.empty() && samples.size() != layout.sequences.size()) {
    return Invalid("samples",
                   absl::StrCat(samples.size(), " names, not one for each of ", layout.sequences.size(), " sequences"));
  }
  for (size_t i = 0; i < layout.sequences.size(); ++i) {
    if (layout.sequences[i].recorded_rows < 0) return Invalid("sequences", absl::StrCat(i, " has fewer than 0 rows"));
  }
  const auto runs = RunsBySequence(layout, maps);
  if (!runs.ok()) return runs.status();
  std::vector<SequenceMerge> merges;
  for (size_t i = 0; i < runs->size(); ++i) {
    std::vector<RowRange> missing;
    merges.push_back(MergeRuns(layout.sequences[i].recorded_rows, (*runs)[i], missing));
    if (!missing.empty()) return Missing(samples.empty() ? "" : samples[i], i, missing);
  }
  return merges;
}

}  // namespace routing_replay::trainer
