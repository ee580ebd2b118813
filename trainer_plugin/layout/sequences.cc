#include "routing_replay/trainer/sequences.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {
namespace {

SequenceShape WholeSample(int64_t tokens) {
  return {.tokens = tokens, .recorded_rows = std::max<int64_t>(tokens - 1, 0)};
}

}  // namespace

absl::StatusOr<std::vector<SequenceShape>> SequencesFromMask(absl::Span<const uint8_t> mask, int64_t width,
                                                             bool keep_left_padding) {
  const int64_t size = static_cast<int64_t>(mask.size());
  if (width < 1 || size % width != 0) {
    return Invalid(Reason::kShape, "attention_mask", absl::StrCat(size, " values are no rows of ", width));
  }
  if (std::any_of(mask.begin(), mask.end(), [](uint8_t value) { return value > 1; })) {
    return Invalid("attention_mask", "has a value that is neither 0 nor 1");
  }
  std::vector<SequenceShape> sequences;
  for (int64_t b = 0; b < size / width; ++b) {
    const absl::Span<const uint8_t> row = mask.subspan(b * width, width);
    const auto begin = std::find(row.begin(), row.end(), 1);
    const auto end = std::find(begin, row.end(), 0);
    if (std::find(end, row.end(), 1) != row.end()) {
      return Invalid(Reason::kShape, absl::StrCat("attention_mask[", b, "]"),
                     absl::StrCat("has padding at column ", end - row.begin(), " between tokens"));
    }
    sequences.push_back(WholeSample(end - begin));
    if (keep_left_padding && begin != row.end()) sequences.back().first_row = begin - row.begin();
  }
  return sequences;
}

absl::StatusOr<std::vector<SequenceShape>> SequencesFromCuSeqlens(absl::Span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0) {
    return Invalid(Reason::kShape, "cu_seqlens", "does not start at 0");
  }
  std::vector<SequenceShape> sequences;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] < cu_seqlens[i - 1]) {
      return Invalid(Reason::kShape, "cu_seqlens",
                     absl::StrCat("entry ", i, " descends from ", cu_seqlens[i - 1], " to ", cu_seqlens[i]));
    }
    sequences.push_back(WholeSample(cu_seqlens[i] - cu_seqlens[i - 1]));
  }
  return sequences;
}

absl::StatusOr<int64_t> MediaExpandedTokens(int64_t tokens, absl::Span<const int64_t> media_rows) {
  if (tokens < 0 || tokens > kMaxStreamRows) return Invalid("tokens", absl::StrCat(tokens, " cannot be"));
  if (static_cast<int64_t>(media_rows.size()) > tokens) {
    return Invalid(Reason::kShape, "media_rows", absl::StrCat(media_rows.size(), " media in ", tokens, " tokens"));
  }
  for (const int64_t rows : media_rows) {
    if (rows < 1 || rows > kMaxStreamRows || tokens > kMaxStreamRows - rows + 1) {
      return Invalid("media_rows", absl::StrCat(rows, " rows of a medium make a sample that cannot be"));
    }
    tokens += rows - 1;
  }
  return tokens;
}

}  // namespace routing_replay::trainer
