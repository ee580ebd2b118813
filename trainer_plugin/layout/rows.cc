#include "routing_replay/trainer/rows.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/layout/multiple.h"

namespace routing_replay::trainer {
namespace {

// Checks a micro-batch and a rank before any row is computed.

constexpr int32_t kMaxRanks = 1 << 20;

absl::Status CheckRank(absl::string_view name, int32_t rank, int32_t size) {
  RR_RETURN_IF_ERROR(CheckSize(absl::StrCat(name, "_size"), size));
  if (rank < 0 || rank >= size) {
    return Invalid(absl::StrCat("rank.", name), absl::StrCat(rank, " is not in [0, ", size, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const SequenceShape& sequence, size_t index, int64_t padded_length) {
  const auto reject = [index](Reason reason, absl::string_view what) {
    return Invalid(reason, absl::StrCat("sequences[", index, "]"), what);
  };
  if (sequence.tokens < 0 || sequence.recorded_rows < 0 || sequence.first_row < 0) {
    return reject(Reason::kField, "a length is negative");
  }
  if (sequence.recorded_rows > kMaxRows) {
    return reject(Reason::kField, absl::StrCat(sequence.recorded_rows, " recorded rows are more than ", kMaxRows));
  }
  if (sequence.recorded_rows > sequence.tokens) {
    return reject(Reason::kShape,
                  absl::StrCat("has ", sequence.recorded_rows, " recorded rows but only ", sequence.tokens, " tokens"));
  }
  if (sequence.first_row <= padded_length && sequence.tokens <= padded_length - sequence.first_row) {
    return absl::OkStatus();
  }
  const std::string first = sequence.first_row > 0 ? absl::StrCat(" from row ", sequence.first_row, " on") : "";
  return reject(Reason::kShape,
                absl::StrCat(sequence.tokens, " tokens", first, " do not fit into ", padded_length, " padded rows"));
}

// Returns the number of chunks into which a span is divided over CP ranks; its rows must be a multiple of this number.
// Zigzag gives each rank two chunks, a contiguous partition one. A span of padding alone needs one per rank.
int64_t CpUnit(const MicroBatchLayout& layout, bool padding_alone) {
  const bool zigzag =
      layout.partition == Partition::kZigzagPerDocument || layout.partition == Partition::kZigzagPerSequence;
  return zigzag && !padding_alone ? ZigzagUnit(layout.cp_size) : layout.cp_size;
}

absl::Status CheckDivides(const MicroBatchLayout& layout, absl::string_view what, int64_t rows,
                          bool padding_alone = false) {
  const int64_t unit = CpUnit(layout, padding_alone);
  if (rows % unit == 0) return absl::OkStatus();
  return Invalid(Reason::kShape, "partition",
                 absl::StrCat(what, " of ", rows, " rows is not a multiple of ", unit > layout.cp_size ? "2 x " : "",
                              "cp_size = ", unit));
}

absl::Status CheckTokensPerSample(const MicroBatchLayout& layout) {
  if (layout.tokens_per_sample.value_or(1) >= 1) return absl::OkStatus();
  return Invalid("tokens_per_sample", absl::StrCat(*layout.tokens_per_sample, " is below 1"));
}

absl::Status CheckStream(const MicroBatchLayout& layout) {
  if (layout.total_rows < 0 || layout.total_rows > kMaxStreamRows) {
    return Invalid("total_rows", absl::StrCat(layout.total_rows, " is not in 0 … ", kMaxStreamRows));
  }
  const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
  if (cu.empty() || cu.front() != 0) return Invalid(Reason::kShape, "cu_seqlens_padded", "must start at 0");
  for (size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] < cu[i - 1]) {
      return Invalid(Reason::kShape, "cu_seqlens_padded",
                     absl::StrCat("entry ", i, " descends from ", cu[i - 1], " to ", cu[i]));
    }
  }
  if (cu.back() != layout.total_rows) {
    return Invalid(Reason::kShape, "cu_seqlens_padded",
                   absl::StrCat("ends at ", cu.back(), ", the stream has ", layout.total_rows,
                                " rows: each row must be in one document, padding in documents of its own"));
  }
  if (cu.size() - 1 < layout.sequences.size()) {
    return Invalid(Reason::kShape, "cu_seqlens_padded",
                   absl::StrCat("has ", cu.size() - 1, " documents for ", layout.sequences.size(), " sequences"));
  }
  return CheckTokensPerSample(layout);
}

absl::Status CheckThd(const MicroBatchLayout& layout) {
  RR_RETURN_IF_ERROR(CheckStream(layout));
  const std::vector<int64_t>& cu = layout.cu_seqlens_padded;
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    const int64_t rows = cu[d + 1] - cu[d];
    const bool real = d < layout.sequences.size();
    if (real) {
      RR_RETURN_IF_ERROR(CheckSequence(layout.sequences[d], d, rows));
    }
    if (layout.partition == Partition::kZigzagPerDocument) {
      const bool padding_alone = !real || layout.sequences[d].tokens == 0;
      if (rows % CpUnit(layout, padding_alone) != 0) {
        return CheckDivides(layout, absl::StrCat("document ", d), rows, padding_alone);
      }
    }
  }
  switch (layout.partition) {
    case Partition::kZigzagPerDocument:
      return absl::OkStatus();
    case Partition::kZigzagPerSequence:
    case Partition::kContiguous:
      return CheckDivides(layout, "the stream", layout.total_rows);
    case Partition::kContiguousPerSequence:
      break;
  }
  return Invalid("partition", "contiguous per sequence is only for BSHD; a packed stream is cut as a whole");
}

absl::Status CheckBshd(const MicroBatchLayout& layout) {
  if (layout.tokens_per_sample) return Invalid("tokens_per_sample", "is only for a packed stream");
  if (layout.batch_size < 1 || layout.batch_size > kMaxStreamRows || layout.padded_length < 0 ||
      layout.padded_length > kMaxStreamRows || layout.batch_size * layout.padded_length > kMaxStreamRows) {
    return Invalid("batch_size", absl::StrCat(layout.batch_size, " x padded_length ", layout.padded_length,
                                              " is not a rectangle of at most ", kMaxStreamRows, " rows"));
  }
  if (layout.sequences.size() > static_cast<size_t>(layout.batch_size)) {
    return Invalid(
        Reason::kShape, "batch_size",
        absl::StrCat("is ", layout.batch_size, ", but the batch has ", layout.sequences.size(), " sequences"));
  }
  for (size_t b = 0; b < layout.sequences.size(); ++b) {
    RR_RETURN_IF_ERROR(CheckSequence(layout.sequences[b], b, layout.padded_length));
  }
  switch (layout.partition) {
    case Partition::kZigzagPerSequence:
    case Partition::kContiguousPerSequence:
      return CheckDivides(layout, "a sequence", layout.padded_length);
    case Partition::kZigzagPerDocument:
    case Partition::kContiguous:
      break;
  }
  return Invalid("partition", "BSHD is cut per sequence: partitions of documents and streams are only for THD");
}

// Makes all checks of BuildRowMap except those that depend on the number of local rows. After OK, no sum or product of
// the layout's sizes overflows, and every division that the partition needs is exact.
absl::Status CheckRows(const MicroBatchLayout& layout, const RowRank& rank) {
  RR_RETURN_IF_ERROR(CheckRank("cp", rank.cp_rank, layout.cp_size));
  RR_RETURN_IF_ERROR(CheckRank("tp", rank.tp_rank, layout.tp_size));
  return layout.format == TokenFormat::kThd ? CheckThd(layout) : CheckBshd(layout);
}

// The rows.

struct Kept {
  RowRange ranges[2];  // The second may be empty.
};

// Returns which of the rows 0 … size - 1 the CP rank keeps, in its order. With zigzag the rows are cut into 2 * cp_size
// chunks, of which rank r keeps chunk r and the r-th from the end.
Kept KeptRows(Partition partition, int64_t size, int64_t cp_size, int64_t cp_rank) {
  const bool zigzag = partition == Partition::kZigzagPerDocument || partition == Partition::kZigzagPerSequence;
  if (!zigzag || cp_size == 1) {
    const int64_t rows = size / cp_size;
    return {{RowRange::OfSize(cp_rank * rows, rows), {}}};
  }
  const int64_t chunk = size / (2 * cp_size);
  return {{RowRange::OfSize(cp_rank * chunk, chunk), RowRange::OfSize(size - (cp_rank + 1) * chunk, chunk)}};
}

// Returns the number of entries of `run` with a local row below `bound`.
int64_t EntriesBelow(const RowRun& run, int64_t bound) {
  if (bound <= run.local_row) return 0;
  return std::min(run.count, (bound - run.local_row + run.stride - 1) / run.stride);
}

// Returns the entries of `run` whose local row is in `window`, with local rows counted from window.begin. The result
// may have count 0.
RowRun ClipToWindow(const RowRun& run, RowRange window) {
  RowRun part = run.Part(EntriesBelow(run, window.begin), EntriesBelow(run, window.end));
  part.local_row -= window.begin;
  return part;
}

// Collects the rows of one rank in the router's order before the SP slice, then cuts the slice.
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
    if (layout_.format == TokenFormat::kBshd) {
      RR_RETURN_IF_ERROR(AddRectangle());
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

  // Adds rows of a document, including the padding after its tokens, at the local rows of `run`.
  void Add(const RowRun& run) {
    if (run.count > 0 && HasTokens(run.sequence)) runs_.push_back(run);
  }

  // Adds the next rows in order, given as a range of the stream.
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

  absl::Status AddRectangle() {
    const int64_t batch = layout_.batch_size;
    const bool sequence_major = layout_.row_order == RowOrder::kSequenceMajor;
    // In sequence-major order, slicing all rows and slicing each sequence are the same; Megatron slices the sequence
    // dimension.
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

  // Row b·S + s after CP and SP becomes local row s·samples + b, where S is tokens_per_sample. Runs of a stream have
  // stride 1.
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

  // Rows of a document are padding before the sequence, then replayed rows, then rows without a route, then padding.
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
  std::vector<int64_t> bounds_;  // Boundaries of documents or sequences, as stream positions.
  std::vector<RowRun> runs_;
  int64_t rows_ = 0;  // Number of local rows so far.
  bool sliced_ = false;
};

}  // namespace

absl::Status CheckSize(absl::string_view field, int32_t size) {
  if (size >= 1 && size <= kMaxRanks) return absl::OkStatus();
  return Invalid(field, absl::StrCat(size, " is not in 1 … ", kMaxRanks));
}

absl::StatusOr<RowMap> BuildRowMap(const MicroBatchLayout& layout, const RowRank& rank) {
  RR_RETURN_IF_ERROR(CheckRows(layout, rank));
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
    if (run.state == RowState::kReplayed) found[run.sequence].push_back(RowRange::OfSize(run.row, run.count));
  }
  for (std::vector<RowRange>& ranges : found) Normalize(ranges);
  return found;
}

}  // namespace routing_replay::trainer
