// The appends that an import makes of an exported sample; import.cc drives it for all. Knows no gRPC.
#ifndef CLIENT_CHECKPOINT_IMPORT_H_
#define CLIENT_CHECKPOINT_IMPORT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::client {

// One append of an import. Views of the sample's ids.
struct ImportAppend {
  AppendOptions options;  // Without token ids …
  std::vector<uint32_t> tokens;
  TensorDescription tensor;
  absl::Span<const uint8_t> ids;

  // … which are these.
  AppendOptions Options() const;
};

// Of these rows of the sample, in the order in which they are to be made, at most some MB each; one without rows where
// there are none. `ids`: of its file (ExportedIds).
std::vector<ImportAppend> ImportAppends(const Geometry& geometry, Producer producer, const ExportedSample& sample,
                                        absl::Span<const uint8_t> ids, RowRange rows, int64_t revision);

// Token ids of `rows` positions whose token check at the end is `check`: zeros, then the one that makes it so. rows >
// 0.
std::vector<uint32_t> TokensWithCheck(int64_t rows, uint32_t check);

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_IMPORT_H_
