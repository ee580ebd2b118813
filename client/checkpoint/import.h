// Makes the appends for an imported sample; import.cc sends them for all samples. Independent of gRPC.
#ifndef CLIENT_CHECKPOINT_IMPORT_H_
#define CLIENT_CHECKPOINT_IMPORT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::client {

// One append of an import. Points to the sample's ids. May be moved, but not copied.
struct ImportAppend {
  AppendOptions options;
  std::vector<uint32_t> tokens;  // The token ids, to which the options refer.
  TensorDescription tensor;
  absl::Span<const uint8_t> ids;
};

// Makes the appends for these rows of the sample, in order, each of at most 16 MiB or one row. If there are no rows,
// makes one append without rows. `ids`: the ids in the sample's file (ReadExportedIds).
std::vector<ImportAppend> ImportAppends(const Geometry& geometry, Producer producer, const ExportedSample& sample,
                                        absl::Span<const uint8_t> ids, RowRange rows, int64_t revision);

// Makes token ids for `rows` positions (rows > 0) whose token check at the end is `check`: zeros, followed by one token
// that gives the CRC this value.
std::vector<uint32_t> TokensWithCheck(int64_t rows, uint32_t check);

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_IMPORT_H_
