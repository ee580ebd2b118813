// Makes the appends of an imported sample; import.cc runs them for all samples. Knows no gRPC.
#ifndef CLIENT_CHECKPOINT_IMPORT_H_
#define CLIENT_CHECKPOINT_IMPORT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::client {

// One append of an import. Points to the sample's ids.
struct ImportAppend {
  AppendOptions options;  // Without the token ids …
  std::vector<uint32_t> tokens;
  TensorDescription tensor;
  absl::Span<const uint8_t> ids;

  // … which are these.
  AppendOptions Options() const;
};

// The appends for these rows of the sample, in order, at most some MB each; one without rows if there are no rows.
// `ids`: those of its file (ExportedIds).
std::vector<ImportAppend> ImportAppends(const Geometry& geometry, Producer producer, const ExportedSample& sample,
                                        absl::Span<const uint8_t> ids, RowRange rows, int64_t revision);

// Token ids for `rows` positions whose token check at the end is `check`: zeros, then one token that produces the
// check. rows > 0.
std::vector<uint32_t> TokensWithCheck(int64_t rows, uint32_t check);

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_IMPORT_H_
