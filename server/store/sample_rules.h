// The content of a sample (its rows and all else that is stored about it), and functions that compute how an append, a
// seal or a truncation changes it. Every store calls them, and then stores the new content in its own way. An
// incarnation of a sample lasts from its opening or restart to the next restart. Pieces: see row_pieces.h.
//
//   append    CheckIncarnation ─▶ (NewIncarnation) ─▶ PlanAppend ─▶ NextContent (without pieces) + PieceChange (pieces)
//             ─▶ the store writes the results of both ─▶ AckOf
//   seal      CheckSeal ─▶ SealedContent + PieceChange ─▶ …
//   truncate  CheckTruncate ─▶ TruncatedContent ─▶ …
//
// Only TakePrefix and NewIncarnation return pieces. The functions keep no state and change only non-const arguments.
#ifndef SERVER_STORE_SAMPLE_RULES_H_
#define SERVER_STORE_SAMPLE_RULES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/sample.h"
#include "server/store/row_pieces.h"
#include "server/store/store.h"
#include "server/store/token_checks.h"

namespace routing_replay::server {

// A weight span is a range of rows with the same weight version and label. The spans of a sample cover all its rows.

// Adds `next`, which starts where the list ends. If the last span differs from it only in rows, that span grows
// instead. No effect if `next` has no rows.
void AppendWeights(std::vector<WeightSpan>& list, WeightSpan next);

// Keeps the spans of rows [0, rows).
void TruncateWeights(std::vector<WeightSpan>& list, int64_t rows);

// The content of a sample without its pieces (the blocks that hold its rows).
struct SampleFacts {
  // `checks`: empty for a new sample; otherwise the checks of the rows that the content begins with.
  explicit SampleFacts(TokenChecks checks) : tokens(std::move(checks)) {}

  int64_t revision = 0;
  uint64_t content_id = 0;
  // The nonce of the append that began this incarnation. A truncation and MarkDoubtful replace it by its EndedNonce.
  uint64_t restart_nonce = 0;
  std::optional<PrefixReference> prefix;  // The prefix that this incarnation was opened with.
  int64_t group = 0;
  std::string engine;
  std::optional<int64_t> num_tokens;
  std::vector<RowRange> unrecorded;  // Normal list (row_range.h).
  std::vector<WeightSpan> weights;
  TokenChecks tokens;  // tokens.rows() is the committed row count.

  int64_t rows() const { return tokens.rows(); }
  bool sealed() const { return num_tokens.has_value(); }
  // Memory of the sample without its blocks.
  int64_t metadata_bytes() const;
  // Upper bound of metadata_bytes() after a first append over `windows` windows with `ranges` unrecorded ranges.
  static int64_t AppendBytes(int64_t windows, size_t ranges);
  // Upper bound of the growth of metadata_bytes() by an append that ends at row `end`, with `ranges` unrecorded ranges.
  int64_t growth_bytes(int64_t end, size_t ranges) const;
};

// All that is stored about a sample. Move-only. Not thread-safe.
struct SampleContent : SampleFacts {
  explicit SampleContent(TokenChecks checks) : SampleFacts(std::move(checks)) {}
  explicit SampleContent(SampleFacts facts) : SampleFacts(std::move(facts)) {}

  RowPieces pieces;

  SampleContent WithoutPieces() const { return SampleContent(SampleFacts(*this)); }
  // Keeps rows [0, rows) and removes the seal. Returns the removed pieces.
  std::vector<RowPiece> Truncate(int64_t rows);
  // The content of a new sample that begins with rows [0, rows) of this one. It has the blocks, token checks, weights
  // and unrecorded ranges of these rows, but not the seal, revision or group of this sample.
  SampleContent Prefix(int64_t rows) const;
};

// A client may number its attempts to generate a sample. The restart nonce then has this mark in its upper half and the
// number in its lower half. A later attempt replaces the rows of an earlier one.
inline constexpr uint64_t kAttempt = uint64_t{0x41545054} << 32;
// The store replaces kAttempt by this mark when it truncates the sample or calls MarkDoubtful; clients never send it.
// So an append of the same attempt has another nonce than the sample and must name the new revision.
inline constexpr uint64_t kEndedAttempt = uint64_t{0x41545045} << 32;

// The number of the attempt that a nonce names; nothing if the nonce names no attempt.
constexpr std::optional<uint32_t> AttemptOf(uint64_t nonce) {
  const uint64_t mark = nonce & ~uint64_t{0xffffffff};
  if (mark != kAttempt && mark != kEndedAttempt) return std::nullopt;
  return static_cast<uint32_t>(nonce);
}

// The nonce that replaces a sample's `nonce` after a truncation; 0 if `nonce` names no attempt.
constexpr uint64_t EndedNonce(uint64_t nonce) {
  const std::optional<uint32_t> attempt = AttemptOf(nonce);
  return attempt ? kEndedAttempt | *attempt : 0;
}

// Opaque numbers, each of which identifies one content of one sample. Next never returns the same number twice; a
// random start keeps the numbers of two processes apart. Thread-safe.
class ContentIds {
 public:
  ContentIds() {
    std::random_device random;
    next_ = static_cast<uint64_t>(random()) << 32 | random();
  }

  uint64_t Next() { return Mix(next_.fetch_add(1, std::memory_order_relaxed)); }

 private:
  // The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection, so that different inputs stay different.
  static uint64_t Mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  std::atomic<uint64_t> next_;
};

inline constexpr size_t kMaxWeightSpans = size_t{1} << 12;  // Per sample.

struct AppendPlan {
  RowRange added;                       // From the committed count on; may be empty.
  std::vector<RowRange> unrecorded;     // Among the added rows; normal list.
  std::optional<uint32_t> token_check;  // The check at added.begin, if append or sample have it.
  bool seals = false;                   // The content is not sealed yet and the append seals it.
  int64_t trimmed_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t unverified_rows = 0;
};

AppendTokens TokensOf(const AppendHeader& header);

// Plans an append to `content`: steps 2, 3 and 5 of the list at the top of store.h. CheckAppend must have succeeded.
// Errors: ALREADY_EXISTS (kOtherTokens, kConflictingRows), FAILED_PRECONDITION (kSealed; kGap with committed_rows;
// kLength: the sample would have more than kMaxUnrecordedRanges unrecorded ranges or more than kMaxWeightSpans weight
// spans), INVALID_ARGUMENT (kRowCount), DATA_LOSS.
absl::StatusOr<AppendPlan> PlanAppend(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                                      absl::Span<const Block> blocks);

// The effect of an append on the incarnation of its sample.
enum class IncarnationStep { kContinue, kOpen, kRestart };

// `content`: null if the sample does not exist. A later attempt than the sample's restarts it, an earlier one is
// rejected. The header's revision is ignored for both, and if the header has the sample's nonce (not 0).
// FAILED_PRECONDITION (kOldRevision; kField: the sample was not opened with this prefix).
absl::StatusOr<IncarnationStep> CheckIncarnation(const SampleContent* content, const AppendHeader& header);

// The content that a child takes from `parent`, whose id is prefix.sample. FAILED_PRECONDITION (kOldRevision,
// kNotCommitted).
absl::StatusOr<SampleContent> TakePrefix(const SampleContent& parent, const PrefixReference& prefix);

// The content of a new incarnation before the append adds rows: empty, or the prefix. `before`: the content that
// kRestart replaces. `prefix`: the result of TakePrefix, needed and consumed if the header names a prefix.
absl::StatusOr<SampleContent> NewIncarnation(IncarnationStep step, const SampleContent* before,
                                             const AppendHeader& header, int32_t block_rows,
                                             std::optional<absl::StatusOr<SampleContent>>& prefix);

// True if the plan changes nothing in the content, except perhaps its group.
bool KeepsContent(const AppendPlan& plan);
// The content after the append. `content` is the result of NewIncarnation if `new_incarnation` is true.
SampleContent NextContent(const SampleContent& content, bool new_incarnation, const AppendHeader& header,
                          const AppendPlan& plan, ContentIds& ids);
// `content` is the content after the append.
AppendAck AckOf(absl::string_view sample, const SampleContent& content, const AppendPlan& plan);

// FAILED_PRECONDITION (kOldRevision) unless `revision` is the content's.
absl::Status CheckRevision(const SampleContent& content, int64_t revision);

// Checks that the sample may be sealed. Sealing it again with the same number is allowed. FAILED_PRECONDITION
// (kOldRevision; kSealed; kNotCommitted), INVALID_ARGUMENT (kRowCount).
absl::Status CheckSeal(const SampleContent& content, int64_t num_tokens, int64_t revision);
SampleContent SealedContent(const SampleContent& content, int64_t num_tokens);

// FAILED_PRECONDITION (kOldRevision), INVALID_ARGUMENT (kField), OUT_OF_RANGE (kNotCommitted).
absl::Status CheckTruncate(const SampleContent& content, int64_t rows, std::optional<int64_t> expected_revision);
SampleContent TruncatedContent(const SampleContent& content, int64_t rows, ContentIds& ids);

// For a content that may have lost acknowledged changes. Gives it a new content id, the EndedNonce, and `now_ms` as
// its revision, far above those reached by counting (or the next revision, if higher). A sealed sample stays sealed.
void MarkDoubtful(SampleContent& content, int64_t now_ms, ContentIds& ids);

// `status` with the sample, its committed rows and its revision in the detail. `content`: null if there is none.
absl::Status WithContent(const absl::Status& status, absl::string_view sample, const SampleContent* content);

struct SampleName {
  std::string sample;
  int64_t handle = 0;
  Producer producer = Producer::kRollout;
};
// Approximate memory of a snapshot of `pieces` pieces, and of the message about the sample that is sent to a reader.
int64_t SnapshotBytes(const SampleContent& content, size_t pieces);
// Fills in everything but stored_bytes and idle_ms.
SampleState StateOf(const SampleName& name, const SampleContent& content);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_RULES_H_
