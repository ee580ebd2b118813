// The content of a sample, and its rules as functions of it: what every store applies to what it holds, and then keeps
// in its own way. Nothing here knows where a content or its blocks live. An incarnation of a sample goes from its
// opening or restart to the next restart.
//
//   append    CheckIncarnation ─▶ (NewIncarnation) ─▶ PlanAppend ─▶ NextContent + PieceChange ─▶ the store keeps both
//             ─▶ AckOf
//   seal      CheckSeal ─▶ SealedContent + PieceChange ─▶ …
//   truncate  CheckTruncate ─▶ TruncatedContent ─▶ …
//
// Contents that are made here have no pieces, but for NewIncarnation's. Pure; thread-safe.
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

// Where rows came from is a list that covers [0, committed rows) and whose neighbors differ.

// Whether the two differ in rows and appends at most.
bool SameOrigin(const Provenance& a, const Provenance& b);

// Adds `next`, which starts where the list ends; grows the last entry instead, its appends counted, if it has the
// same origin. No effect if empty.
void AppendProvenance(std::vector<Provenance>& list, Provenance next);

// Keeps rows [0, rows). Appends stay counted.
void TruncateProvenance(std::vector<Provenance>& list, int64_t rows);

// The same rows by their weights alone.
std::vector<WeightSpan> WeightSpansOf(const std::vector<Provenance>& list);

// Move-only. Not thread-safe.
struct SampleContent {
  // `checks` of no rows, or what the caller goes on from.
  explicit SampleContent(TokenChecks checks) : tokens(std::move(checks)) {}

  int64_t revision = 0;
  uint64_t content_id = 0;
  uint64_t restart_nonce = 0;  // Of the append that began this incarnation; EndedNonce of it after a truncation.
  std::optional<PrefixReference> prefix;  // What this incarnation was opened with.
  int64_t group = 0;
  std::string engine;
  std::optional<int64_t> num_tokens;
  std::vector<RowRange> unrecorded;  // Normal list.
  std::vector<Provenance> provenance;
  TokenChecks tokens;  // tokens.rows() is the committed row count.
  RowPieces pieces;

  int64_t rows() const { return tokens.rows(); }
  bool sealed() const { return num_tokens.has_value(); }
  // What the lists take in memory, the pieces excluded.
  int64_t metadata_bytes() const;
  // What one append of `rows` rows, of them `ranges` unrecorded ranges, takes at most as a sample of its own; the
  // pieces excluded.
  static int64_t AppendBytes(int64_t rows, size_t ranges);
  // At most so much more with rows up to `end`, of them `ranges` unrecorded ranges, from one append.
  int64_t growth_bytes(int64_t end, size_t ranges) const;

  // All but the pieces.
  SampleContent WithoutPieces() const;
  // Keeps rows [0, rows), unsealed. Gives back the pieces that went.
  std::vector<RowPiece> Truncate(int64_t rows);
  // A sample that opens as rows [0, rows) of this one: the same blocks, and nothing else that is this sample's own.
  SampleContent Prefix(int64_t rows) const;
};

// Restart nonces that are in an order: those of attempts, of which a later one replaces the rows of an earlier one.
// The upper half of an attempt's nonce; the lower half is its number.
inline constexpr uint64_t kAttempt = uint64_t{0x41545054} << 32;
// The same of an incarnation that a truncation has ended; kept, never sent. No append goes on with it by its nonce
// alone.
inline constexpr uint64_t kEndedAttempt = uint64_t{0x41545045} << 32;

// The attempt that a nonce is of, if it is of one.
constexpr std::optional<uint32_t> AttemptOf(uint64_t nonce) {
  const uint64_t mark = nonce & ~uint64_t{0xffffffff};
  if (mark != kAttempt && mark != kEndedAttempt) return std::nullopt;
  return static_cast<uint32_t>(nonce);
}

// What a truncation leaves of a nonce.
constexpr uint64_t EndedNonce(uint64_t nonce) {
  const std::optional<uint32_t> attempt = AttemptOf(nonce);
  return attempt ? kEndedAttempt | *attempt : 0;
}

// Opaque numbers that name one content of one sample. Never gives the same number twice; a random start keeps the
// numbers of two processes apart. Thread-safe.
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

inline constexpr size_t kMaxProvenance = size_t{1} << 12;  // Entries of a sample.

struct AppendPlan {
  RowRange added;                       // From the committed count on; may be empty.
  std::vector<RowRange> unrecorded;     // Of the added rows; normal list.
  std::optional<uint32_t> token_check;  // The append's own, at added.begin.
  bool seals = false;                   // The content is not sealed yet and the append seals it.
  int64_t trimmed_rows = 0;
  int64_t conflicting_rows = 0;
  int64_t late_rows = 0;
  int64_t unverified_rows = 0;
};

AppendTokens TokensOf(const AppendHeader& header);

// Steps 2, 3 and 5 of store.h against `content`. Requires CheckAppend. Errors: ALREADY_EXISTS (kOtherTokens,
// kConflictingRows), FAILED_PRECONDITION (kSealed; kGap with committed_rows and missing_rows; kLength: the sample
// would have more than kMaxUnrecordedRanges ranges or kMaxProvenance), INVALID_ARGUMENT (kRowCount), DATA_LOSS.
absl::StatusOr<AppendPlan> PlanAppend(const RunInfo& run, const SampleContent& content, const AppendHeader& header,
                                      absl::Span<const Block> blocks);

// What an append does to the incarnation of its sample.
enum class IncarnationStep { kContinue, kOpen, kRestart };

// `content`: null if there is no such sample. A nonce of an attempt goes before the revision where the incarnation
// is another attempt's: a later one restarts, an earlier one is rejected. FAILED_PRECONDITION (kOldRevision; kField: it
// was not opened with this prefix).
absl::StatusOr<IncarnationStep> CheckIncarnation(const SampleContent* content, const AppendHeader& header);

// What a child may take of `parent`, whose id is prefix.sample. FAILED_PRECONDITION (kOldRevision, kNotCommitted).
absl::StatusOr<SampleContent> TakePrefix(const SampleContent& parent, const PrefixReference& prefix);

// The content that the append begins with. `before`: of the incarnation that kRestart ends. `prefix`: what TakePrefix
// gave, or an error that is given back; required, and used up, where the header names a prefix.
absl::StatusOr<SampleContent> NewIncarnation(IncarnationStep step, const SampleContent* before,
                                             const AppendHeader& header, int32_t block_rows,
                                             std::optional<absl::StatusOr<SampleContent>>& prefix);

// Whether the plan leaves a content as it is, but for its group.
bool KeepsContent(const AppendPlan& plan);
// What follows `content`, which is a NewIncarnation where `new_incarnation` says so.
SampleContent NextContent(const SampleContent& content, bool new_incarnation, const AppendHeader& header,
                          const AppendPlan& plan, ContentIds& ids);
// `content` as it is once the plan is carried out.
AppendAck AckOf(absl::string_view sample, const SampleContent& content, const AppendPlan& plan);

// FAILED_PRECONDITION (kOldRevision).
absl::Status CheckRevision(const SampleContent& content, int64_t revision);

// Whether the sample may be sealed; to seal it again as it is sealed may be. FAILED_PRECONDITION (kOldRevision;
// kSealed; kNotCommitted with missing_rows), INVALID_ARGUMENT (kRowCount).
absl::Status CheckSeal(const SampleContent& content, int64_t num_tokens, int64_t revision);
SampleContent SealedContent(const SampleContent& content, int64_t num_tokens);

// FAILED_PRECONDITION (kOldRevision), INVALID_ARGUMENT (kField), OUT_OF_RANGE (kNotCommitted).
absl::Status CheckTruncate(const SampleContent& content, int64_t rows, std::optional<int64_t> expected_revision);
SampleContent TruncatedContent(const SampleContent& content, int64_t rows, ContentIds& ids);

// Of a content after which others may have been acknowledged that are lost. `now_ms`, the time of day, becomes its
// revision: above all that those can have had. A seal stays: the rows under it are whole.
void MarkDoubtful(SampleContent& content, int64_t now_ms, ContentIds& ids);

// `status` with the sample, its committed rows and its revision in the detail. `content`: null if there is none.
absl::Status WithContent(const absl::Status& status, absl::string_view sample, const SampleContent* content);

struct SampleName {
  std::string sample;
  int64_t handle = 0;
  Producer producer = Producer::kRollout;
};
// What a snapshot of so many pieces takes, and the record that a reader gets of it, about.
int64_t SnapshotBytes(const SampleContent& content, size_t pieces);
// All but stored_bytes and idle_ms.
SampleState StateOf(const SampleName& name, const SampleContent& content);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_RULES_H_
