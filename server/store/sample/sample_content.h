// Everything that an append, a seal or a truncation can change of a sample, and the same of a sealed sample in as
// little memory as it takes.
#ifndef SERVER_STORE_SAMPLE_SAMPLE_CONTENT_H_
#define SERVER_STORE_SAMPLE_SAMPLE_CONTENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/sample.h"
#include "server/store/sample/row_pieces.h"
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

// One allocation. Move-only. Not thread-safe.
//
//   block | block | …  ◀─ packed_ ─▶  how many, group, rows, flags, what else differs from most samples, in bytes
class RestingContent {
 public:
  RestingContent() = default;
  explicit RestingContent(SampleContent content);
  RestingContent(RestingContent&& other) noexcept : packed_(std::exchange(other.packed_, nullptr)) {}
  RestingContent& operator=(RestingContent&& other) noexcept {
    std::swap(packed_, other.packed_);
    return *this;
  }
  ~RestingContent();

  bool empty() const { return packed_ == nullptr; }
  // The others require one that is not empty. `block_rows` is that of the content's run.
  int64_t group() const;
  int64_t rows() const;
  // Those that the pieces show, in their order.
  absl::Span<const std::shared_ptr<StoredBlock>> blocks() const;
  // The content as it is, with the same blocks.
  SampleContent Copy(int32_t block_rows) const;
  // The content as it was; empty afterwards.
  SampleContent Wake(int32_t block_rows);

 private:
  // What every question needs, and the bytes behind it.
  struct Head;

  Head ReadHead() const;
  std::shared_ptr<StoredBlock>* first_block(size_t count) const;

  char* packed_ = nullptr;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_SAMPLE_CONTENT_H_
