#include "routing_replay/trainer/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/rows_check.h"

namespace routing_replay::trainer {
namespace {

// What CP rank r keeps of rows 0 … size - 1, in its order: one or two ranges, the second possibly empty.
struct Kept {
  RowRange ranges[2];
};

Kept KeptRows(Partition partition, int64_t size, int64_t cp_size, int64_t cp_rank) {
  const bool zigzag = partition == Partition::kZigzagPerDocument || partition == Partition::kZigzagPerSequence;
  if (!zigzag || cp_size == 1) {
    const int64_t rows = size / cp_size;
    return {{RowRange::OfSize(cp_rank * rows, rows), {}}};
  }
  const int64_t half = size / (2 * cp_size);
  return {{RowRange::OfSize(cp_rank * half, half), RowRange::OfSize(size - (cp_rank + 1) * half, half)}};
}

// Entries of `run` with a local row below `bound`.
int64_t EntriesBelow(const RowRun& run, int64_t bound) {
  if (bound <= run.local_row) return 0;
  return std::min(run.count, (bound - run.local_row + run.stride - 1) / run.stride);
}

// The entries whose local row is in `window`, their local rows counted from window.begin. May have count 0.
RowRun ClipToWindow(const RowRun& run, RowRange window) {
  RowRun part = run.Part(EntriesBelow(run, window.begin), EntriesBelow(run, window.end));
  part.local_row -= window.begin;
  return part;
}

// Collects the rows of one rank in the router's order before the SP slice, then cuts that.
class RowMapBuilder {
 public:
  RowMapBuilder(const MicroBatchLayout& layout, const RowRank& rank) : layout_(layout), rank_(rank) {
    if (layout.format == TokenFormat::kThd) {
      bounds_ = layout.cu_seqlens_padded;
    } else {
      for (int64_t b = 0; b <= layout.batch_size; ++b) bounds_.push_back(b * layout.padded_length);
    }
  }

  absl::StatusOr<RowMap> Build() {
    if (layout_.partition == Partition::kExplicit) {
      AddPositions();
    } else if (layout_.format == TokenFormat::kBshd) {
      if (absl::Status status = AddRectangle(); !status.ok()) return status;
    } else if (layout_.partition == Partition::kZigzagPerDocument) {
      AddDocuments();
    } else {
      for (const RowRange& range : Keep(layout_.total_rows).ranges) AddStream(range);
    }
    return Finish();
  }

 private:
  Kept Keep(int64_t size) const { return KeptRows(layout_.partition, size, layout_.cp_size, rank_.cp_rank); }
  bool slices() const { return layout_.sequence_parallel && layout_.tp_size > 1; }
  bool HasTokens(size_t document) const {
    return document < layout_.sequences.size() && layout_.sequences[document].tokens > 0;
  }

  // Rows of a document, padding behind its tokens included, at `run`'s local rows.
  void Add(const RowRun& run) {
    if (run.count > 0 && HasTokens(run.sequence)) runs_.push_back(run);
  }

  // The next rows in order, given as a range of the stream.
  void AddStream(RowRange stream) {
    size_t d = std::upper_bound(bounds_.begin(), bounds_.end(), stream.begin) - bounds_.begin() - 1;
    for (; !stream.empty(); ++d) {
      const int64_t rows = std::min(stream.end, bounds_[d + 1]) - stream.begin;
      Add({.local_row = rows_, .count = rows, .sequence = static_cast<int32_t>(d), .row = stream.begin - bounds_[d]});
      rows_ += rows;
      stream.begin += rows;
    }
  }

  void AddDocuments() {
    for (size_t d = 0; d + 1 < bounds_.size(); ++d) {
      const int64_t size = bounds_[d + 1] - bounds_[d];
      if (!HasTokens(d)) {
        rows_ += size / layout_.cp_size;
        continue;
      }
      for (const RowRange& range : Keep(size).ranges) {
        Add({.local_row = rows_, .count = range.size(), .sequence = static_cast<int32_t>(d), .row = range.begin});
        rows_ += range.size();
      }
    }
  }

  void AddPositions() {
    const std::vector<int64_t>& positions = rank_.positions;
    for (size_t begin = 0, end = 0; begin < positions.size(); begin = end) {
      for (end = begin + 1; end < positions.size() && positions[end] == positions[end - 1] + 1;) ++end;
      AddStream({positions[begin], positions[end - 1] + 1});
    }
  }

  absl::Status AddRectangle() {
    const int64_t batch = layout_.batch_size;
    const bool sequence_major = layout_.row_order == RowOrder::kSequenceMajor;
    // Dividing rows or sequences is the same in sequence-major order, and Megatron divides the sequence.
    const bool per_sequence = slices() && (sequence_major || layout_.sp_slice == SpSlice::kBeforeFlatten);
    int64_t length = layout_.padded_length / layout_.cp_size;
    RowRange window{0, length};
    if (per_sequence) {
      if (length % layout_.tp_size != 0) return NotDivisible("the local rows of a sequence", length);
      length /= layout_.tp_size;
      window = RowRange::OfSize(rank_.tp_rank * length, length);
      sliced_ = true;
    }
    for (int64_t b = 0; b < batch; ++b) {
      int64_t s = 0;
      for (const RowRange& range : Keep(layout_.padded_length).ranges) {
        const RowRun in_sequence{
            .local_row = s, .count = range.size(), .sequence = static_cast<int32_t>(b), .row = range.begin};
        s += range.size();
        RowRun run = ClipToWindow(in_sequence, window);
        run.stride = sequence_major ? batch : 1;
        run.local_row = sequence_major ? run.local_row * batch + b : b * length + run.local_row;
        Add(run);
      }
    }
    rows_ = batch * length;
    return absl::OkStatus();
  }

  absl::Status NotDivisible(absl::string_view what, int64_t rows) const {
    return Invalid(Reason::kShape, "sequence_parallel",
                   absl::StrCat(what, ", ", rows, ", are not a multiple of tp_size = ", layout_.tp_size));
  }

  absl::StatusOr<RowMap> Finish() {
    RowRange window{0, rows_};
    if (slices() && !sliced_) {
      if (rows_ % layout_.tp_size != 0) return NotDivisible("the local rows", rows_);
      window = RowRange::OfSize(rank_.tp_rank * (rows_ / layout_.tp_size), rows_ / layout_.tp_size);
    }
    RowMap map;
    map.rows = layout_.target_rows.value_or(window.size());
    if (map.rows < window.size() || map.rows > kMaxStreamRows) {
      return Invalid(Reason::kShape, "target_rows",
                     absl::StrCat(map.rows, " is not in ", window.size(), " … ", kMaxStreamRows));
    }
    const int64_t samples = layout_.tokens_per_sample ? window.size() / *layout_.tokens_per_sample : 1;
    if (samples > 1 && window.size() % *layout_.tokens_per_sample != 0) {
      return Invalid(Reason::kShape, "tokens_per_sample",
                     absl::StrCat("the local rows, ", window.size(), ", are not a multiple of ",
                                  *layout_.tokens_per_sample, ": the MoE layer cannot divide them into samples"));
    }
    map.runs.reserve(runs_.size());
    for (const RowRun& run : runs_) {
      const RowRun local = ClipToWindow(run, window);
      samples > 1 ? SplitUnflattened(local, samples, map) : Split(local, map);
    }
    return map;
  }

  // Local row b·S + s of a stream goes to s·samples + b, S being tokens_per_sample. Runs of a stream have stride 1.
  void SplitUnflattened(const RowRun& run, int64_t samples, RowMap& map) const {
    const int64_t size = *layout_.tokens_per_sample;
    for (int64_t begin = 0; begin < run.count;) {
      RowRun part = run.Part(begin, run.count);
      part.count = std::min(part.count, size - part.local_row % size);
      begin += part.count;
      part.local_row = part.local_row % size * samples + part.local_row / size;
      part.stride = samples;
      Split(part, map);
    }
  }

  // Rows of a document are padding before the sequence, then replayed, then without a route, then padding.
  void Split(RowRun run, RowMap& map) const {
    const SequenceShape& shape = layout_.sequences[run.sequence];
    run = run.Part(std::clamp<int64_t>(shape.first_row - run.row, 0, run.count), run.count);
    run.row -= shape.first_row;
    const int64_t replayed = std::clamp<int64_t>(shape.recorded_rows - run.row, 0, run.count);
    const int64_t real = std::clamp<int64_t>(shape.tokens - run.row, 0, run.count);
    if (replayed > 0) map.runs.push_back(run.Part(0, replayed));
    if (real > replayed) {
      map.runs.push_back(run.Part(replayed, real));
      map.runs.back().state = shape.live ? RowState::kLive : RowState::kUnrecorded;
    }
    map.replayed_rows += replayed;
    (shape.live ? map.live_rows : map.unrecorded_rows) += real - replayed;
  }

  const MicroBatchLayout& layout_;
  const RowRank& rank_;
  std::vector<int64_t> bounds_;  // Of documents or sequences, in stream positions.
  std::vector<RowRun> runs_;
  int64_t rows_ = 0;  // Local rows so far.
  bool sliced_ = false;
};

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
    if (known > 0) merge.copies.push_back({record, run.Part(0, known)});
    if (known == run.count) continue;
    AppendMerged(missing, {end, run.row + known});
    merge.runs.push_back({record, run.Part(known, run.count)});
    end = run.row + run.count;
  }
  AppendMerged(missing, {end, rows});
  return merge;
}

}  // namespace

absl::StatusOr<RowMap> BuildRowMap(const MicroBatchLayout& layout, const RowRank& rank) {
  if (absl::Status status = CheckRows(layout, rank); !status.ok()) return status;
  return RowMapBuilder(layout, rank).Build();
}

std::vector<LocalRow> ExpandRowMap(const RowMap& map) {
  std::vector<LocalRow> rows(map.rows);
  for (const RowRun& run : map.runs) {
    LocalRow* out = rows.data() + run.local_row;
    for (int64_t i = 0; i < run.count; ++i) {
      out[i * run.stride] = {.sequence = run.sequence, .row = static_cast<int32_t>(run.row + i), .state = run.state};
    }
  }
  return rows;
}

std::vector<std::vector<RowRange>> ReplayedRows(const RowMap& map, int32_t sequences) {
  std::vector<std::vector<RowRange>> found(sequences);
  for (const RowRun& run : map.runs) {
    if (run.state != RowState::kReplayed) continue;
    std::vector<RowRange>& ranges = found[run.sequence];
    if (!ranges.empty() && ranges.back().end == run.row) {
      ranges.back().end += run.count;
    } else {
      ranges.push_back(RowRange::OfSize(run.row, run.count));
    }
  }
  for (std::vector<RowRange>& ranges : found) Normalize(ranges);
  return found;
}

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
