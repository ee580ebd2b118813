// Token checks of a sample, which show whether an append belongs to the same trajectory. The check at row n is the
// CRC32C of the token ids of rows 0 … n − 1. A store never keeps tokens, only the checks at every block boundary, at
// the committed end, and at the end of the last rows whose tokens are known.
//
//   stored checks     0────────B────────2B────────3B──e        (each one may be unknown)
//   an append             s─────┬────────┬────────┬───┬──▶     chain: start check, then extended over its token ids
//                         compared at the rows where both checks are known
#ifndef SERVER_STORE_TOKEN_CHECKS_H_
#define SERVER_STORE_TOKEN_CHECKS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::server {

// What an append states about its tokens.
struct AppendTokens {
  RowRange rows;
  absl::Span<const uint8_t> ids;  // 4 bytes per row, or empty: not given.
  std::optional<uint32_t> start;  // The check at rows.begin.

  absl::Span<const uint8_t> of(RowRange part) const {
    return ids.subspan((part.begin - rows.begin) * 4, part.size() * 4);
  }
};

// How an append's tokens compare with the stored ones over the rows that both have.
struct TokenComparison {
  std::optional<int64_t> differs_at;     // The row of the first check that differs.
  std::vector<RowRange> unverified;      // Overlapping rows whose tokens could not be compared; normal list.
  std::vector<RowRange> suspect;         // Those of `unverified` whose tokens were given on both sides.
  std::optional<uint32_t> check_at_end;  // The check where the overlap ends, if known.
};

// A value type. Not thread-safe.
class TokenChecks {
 public:
  explicit TokenChecks(int32_t block_rows) : block_rows_(block_rows) {}
  // The checks of a sample with `rows` rows. `end`: the check at `rows`, if known. `boundaries`: the checks at the ends
  // of all whole windows, of which there are rows / block_rows. `known`: see known(). `known_end`: the check at the end
  // of `known`, if that end is before `rows`.
  TokenChecks(int32_t block_rows, int64_t rows, std::optional<uint32_t> end,
              std::vector<std::optional<uint32_t>> boundaries, std::vector<RowRange> known,
              std::optional<uint32_t> known_end = std::nullopt)
      : block_rows_(block_rows),
        rows_(rows),
        end_(end),
        boundaries_(std::move(boundaries)),
        known_(std::move(known)),
        known_end_(known_end) {}

  int32_t block_rows() const { return block_rows_; }
  int64_t rows() const { return rows_; }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(boundaries_.size() * sizeof(boundaries_[0]) + known_.size() * sizeof(RowRange));
  }
  // Rows that checks cover: their token ids were given, and the check before them was known. Normal list.
  const std::vector<RowRange>& known() const { return known_; }
  // The check at `rows`, if known. At row 0 it is always known: 0.
  std::optional<uint32_t> At(int64_t rows) const;
  // The check at the end of a whole window, if it came with the rows of that window.
  std::optional<uint32_t> AtWindowEnd(int64_t window) const { return boundaries_[window]; }
  // The check at the end of `known()`, if that end is before rows() and the check is known.
  std::optional<uint32_t> known_end() const { return known_end_; }
  // True if the check at `rows` equals `crc32c`; nothing if that check is not known.
  std::optional<bool> Fits(int64_t rows, uint32_t crc32c) const;
  // Upper bound for the growth of memory_bytes() when Extend adds rows up to `end`.
  int64_t growth_bytes(int64_t end) const {
    return static_cast<int64_t>((end / block_rows_ - rows_ / block_rows_) * sizeof(boundaries_[0]) + sizeof(RowRange));
  }
  // The window of row `rows` − 1, the last row that a check at `rows` covers; 0 if `rows` is 0.
  int64_t WindowOf(int64_t rows) const { return rows == 0 ? 0 : (rows - 1) / block_rows_; }

  // Compares the tokens of the overlap at each row that has a check. The rows after the last check are unverified, and
  // those before the first one if neither side knows the check at tokens.rows.begin. Without ids, all are unverified.
  TokenComparison Compare(const AppendTokens& tokens) const;

  // Adds the rows [rows(), tokens.rows.end), if there are any. `check` is TokenComparison::check_at_end. Without token
  // ids or without `check`, the checks of the added rows are unknown.
  void Extend(const AppendTokens& tokens, std::optional<uint32_t> check);
  // If the check at rows() is not known yet, takes it from an append that starts at rows() and states it. Does not set
  // the check of a window.
  void TellEnd(const AppendTokens& tokens) {
    if (!end_ && tokens.rows.begin == rows_) end_ = tokens.start;
  }
  // Keeps the checks of the first `rows` rows (at most rows()). The check at `rows` stays known if it is stored: at
  // the end of a window as AtWindowEnd, elsewhere at rows() or at the end of known().
  void Truncate(int64_t rows);

 private:
  int32_t block_rows_;
  int64_t rows_ = 0;
  std::optional<uint32_t> end_ = 0;                  // The check at rows_.
  std::vector<std::optional<uint32_t>> boundaries_;  // [i]: at (i + 1) * block_rows_.
  std::vector<RowRange> known_;                      // See known().
  std::optional<uint32_t> known_end_;                // The check at the end of known_, if that is before rows_.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_TOKEN_CHECKS_H_
