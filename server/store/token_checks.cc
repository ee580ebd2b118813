#include "server/store/token_checks.h"

#include <algorithm>

#include "routing_replay/wire/checksum.h"

namespace routing_replay::server {
namespace {

// Computes the append's own token checks, from a first check and the token ids.
class Chain {
 public:
  Chain(const AppendTokens& tokens, std::optional<uint32_t> check)
      : tokens_(tokens), row_(tokens.rows.begin), check_(check) {}

  std::optional<uint32_t> AdvanceTo(int64_t row) {
    if (row != row_ && tokens_.ids.empty()) check_.reset();
    if (row != row_ && check_) check_ = TokenCheckExtend(*check_, tokens_.of({row_, row}));
    row_ = row;
    return check_;
  }
  void Adopt(uint32_t check) { check_ = check; }

 private:
  const AppendTokens& tokens_;
  int64_t row_;
  std::optional<uint32_t> check_;
};

// Rows where a check may be stored: block boundaries in (range.begin, range.end), then range.end.
std::vector<int64_t> CheckRows(RowRange range, int32_t block_rows) {
  std::vector<int64_t> rows;
  for (RowRange window : SplitAtWindows(range, block_rows)) rows.push_back(window.end);
  return rows;
}

}  // namespace

std::optional<uint32_t> TokenChecks::At(int64_t rows) const {
  if (rows == 0) return 0;
  if (rows == rows_) return end_;
  if (rows > rows_) return std::nullopt;
  if (rows % block_rows_ == 0) return boundaries_[rows / block_rows_ - 1];
  return !known_.empty() && rows == known_.back().end ? known_end_ : std::nullopt;
}

std::optional<bool> TokenChecks::Fits(int64_t rows, uint32_t crc32c) const {
  const std::optional<uint32_t> stored = At(rows);
  return stored ? std::optional(*stored == crc32c) : std::nullopt;
}

TokenComparison TokenChecks::Compare(const AppendTokens& tokens) const {
  TokenComparison result;
  const int64_t begin = tokens.rows.begin;
  const RowRange overlap{begin, std::max(begin, std::min(tokens.rows.end, rows_))};
  const std::optional<uint32_t> stored_start = At(begin);
  if (tokens.start && stored_start && *tokens.start != *stored_start) {
    result.differs_at = begin;
    return result;
  }
  Chain chain(tokens, tokens.start ? tokens.start : stored_start);
  int64_t spoken_for = begin;
  std::vector<int64_t> rows = CheckRows(overlap, block_rows_);
  if (known_end_ && known_.back().end > overlap.begin && known_.back().end < overlap.end) {
    rows.insert(std::upper_bound(rows.begin(), rows.end(), known_.back().end), known_.back().end);
  }
  for (int64_t row : rows) {
    const std::optional<uint32_t> own = chain.AdvanceTo(row);
    const std::optional<uint32_t> stored = At(row);
    if (!stored) continue;
    if (own && *own != *stored) {
      result.differs_at = row;
      return result;
    }
    if (!own) AppendMerged(result.unverified, {spoken_for, row});
    chain.Adopt(*stored);
    spoken_for = row;
  }
  AppendMerged(result.unverified, {spoken_for, overlap.end});
  result.check_at_end = chain.AdvanceTo(overlap.end);
  if (tokens.ids.empty()) return result;
  for (RowRange rows : result.unverified) {
    for (RowRange known : Clip(known_, rows)) AppendMerged(result.suspect, known);
  }
  return result;
}

void TokenChecks::Extend(const AppendTokens& tokens, std::optional<uint32_t> check) {
  const RowRange added{rows_, tokens.rows.end};
  if (added.empty()) return;
  const bool known = check.has_value() && !tokens.ids.empty();
  if (known) known_end_.reset();
  if (!known && !known_.empty() && known_.back().end == rows_) known_end_ = end_;
  for (RowRange window : SplitAtWindows(added, block_rows_)) {
    check = known ? std::optional(TokenCheckExtend(*check, tokens.of(window))) : std::nullopt;
    if (window.end % block_rows_ == 0) boundaries_.push_back(check);
  }
  if (known) AppendMerged(known_, added);
  rows_ = added.end;
  end_ = check;
}

void TokenChecks::Truncate(int64_t rows) {
  // At the end of a window, only a check that came together with the window's rows stays known. A check that only a
  // later append stated for this row (TellEnd), for example with a seal, is dropped.
  end_ = rows > 0 && rows % block_rows_ == 0 ? AtWindowEnd(rows / block_rows_ - 1) : At(rows);
  if (!known_.empty() && rows <= known_.back().end) known_end_.reset();
  rows_ = rows;
  boundaries_.resize(rows / block_rows_);
  known_ = Clip(known_, {0, rows});
}

}  // namespace routing_replay::server
