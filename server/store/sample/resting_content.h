// The content of a sample that nobody changes, in as little memory as it takes: a run may have a million of them.
#ifndef SERVER_STORE_SAMPLE_RESTING_CONTENT_H_
#define SERVER_STORE_SAMPLE_RESTING_CONTENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {

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
  // As those of RowPieces.
  std::vector<RowPiece> Find(RowRange range) const;
  // How many pieces Find has in its hands, at least as many as it gives.
  size_t Count(RowRange range) const;
  int64_t charged_bytes() const;
  // All but the pieces.
  SampleContent Lists(int32_t block_rows) const;
  // The pieces, when the content ends; empty afterwards.
  RowPieces TakePieces();
  // The content as it was; empty afterwards.
  SampleContent Wake(int32_t block_rows);

 private:
  // What every question needs, and the bytes behind it.
  struct Head;

  Head ReadHead() const;
  std::shared_ptr<StoredBlock>* first_block(size_t count) const;
  std::vector<RowPiece> Pieces() const;

  char* packed_ = nullptr;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_RESTING_CONTENT_H_
