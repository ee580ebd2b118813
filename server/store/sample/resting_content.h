// The content of a sample that nobody changes, in as little memory as it takes: a run may have a million of them.
#ifndef SERVER_STORE_SAMPLE_RESTING_CONTENT_H_
#define SERVER_STORE_SAMPLE_RESTING_CONTENT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "server/store/sample/sample_content.h"

namespace routing_replay {

// The lists packed into one string of bytes, and the pieces as they are. Move-only. Not thread-safe.
class RestingContent {
 public:
  RestingContent() = default;
  explicit RestingContent(SampleContent content);

  bool empty() const { return lists_ == nullptr; }
  // The others require one that is not empty. `block_rows` is that of the content's run.
  int64_t group() const;
  int64_t rows() const;
  const RowPieces& pieces() const { return pieces_; }
  // The content ends.
  RowPieces TakePieces() && { return std::move(pieces_); }
  // All but the pieces.
  SampleContent Lists(int32_t block_rows) const;
  // The content as it was; empty afterwards.
  SampleContent Wake(int32_t block_rows);

 private:
  std::unique_ptr<const char[]> lists_;
  RowPieces pieces_;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_SAMPLE_RESTING_CONTENT_H_
