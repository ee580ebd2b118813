// How many samples come in one page of a list.
#ifndef SERVER_STORE_PAGE_LIMIT_H_
#define SERVER_STORE_PAGE_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "server/store/store.h"

namespace routing_replay::server {

// What Store::List says of page_size. INVALID_ARGUMENT (kField) below 0.
absl::StatusOr<size_t> PageLimit(int32_t page_size);

// What a state takes in memory, about.
int64_t StateBytes(const SampleState& state);

// Adds a state to a page of `limit` samples, unless it is full: then it gets its token. A page has one state at least.
class PageBuilder {
 public:
  explicit PageBuilder(size_t limit) : limit_(limit) {}

  // Whether it was added.
  bool Add(SampleState state);
  ListPage Take() { return std::move(page_); }

 private:
  const size_t limit_;
  int64_t bytes_ = 0;
  ListPage page_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_PAGE_LIMIT_H_
