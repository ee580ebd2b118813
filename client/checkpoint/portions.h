// How many samples are read in one call.
#ifndef CLIENT_CHECKPOINT_PORTIONS_H_
#define CLIENT_CHECKPOINT_PORTIONS_H_

#include <cstddef>
#include <cstdint>

#include "client/server_limits.h"

namespace routing_replay::client {

// How many of the first of `count` samples: some tens of MB, or one that has more. `bytes_of(i)` are the rows of one.
template <typename BytesOf>
size_t PortionOf(size_t count, const BytesOf& bytes_of) {
  constexpr int64_t kPortionBytes = int64_t{32} << 20;
  int64_t bytes = 0;
  for (size_t i = 0; i < count && i < kMaxNamesPerCall; ++i) {
    bytes += bytes_of(i);
    if (i > 0 && bytes > kPortionBytes) return i;
  }
  return count < kMaxNamesPerCall ? count : kMaxNamesPerCall;
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_PORTIONS_H_
