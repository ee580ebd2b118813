// Files of rows: .npy and safetensors, and the index of a recorded trace beside them.
#ifndef PROTO_JSON_ROWS_FILE_H_
#define PROTO_JSON_ROWS_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// One tensor of a safetensors file.
struct SafeTensor {
  std::string name;
  std::string dtype_name;             // As in the file: "U8", "F32", …
  DType dtype = DType::kUnspecified;  // kUnspecified if it is not one of our dtypes.
  std::vector<int64_t> shape;
  absl::Span<const uint8_t> data;  // Points into the file.
};

// The tensors of a safetensors file (8 bytes of header length, a JSON header of at most 1 MiB, the data), by name.
// Their data lies inside the file; for our dtypes its length matches the shape. INVALID_ARGUMENT, field "payload":
// kEncoding, kShape or kLength.
absl::StatusOr<std::vector<SafeTensor>> ParseSafeTensors(absl::Span<const uint8_t> file);

// A tensor of rows inside a file.
struct RowsFile {
  TensorDescription tensor;           // With its shape.
  absl::Span<const uint8_t> payload;  // Points into the file.
};

// The rows of a .npy or safetensors file; the first bytes tell which it is. `name` is that of the tensor; if empty, the
// file must have exactly one integer tensor with three axes, which is used. INVALID_ARGUMENT as ParseNpyHeader and
// ParseSafeTensors. NOT_FOUND if no tensor matches, or several do; the message lists the tensors in the file.
absl::StatusOr<RowsFile> OpenRowsFile(absl::Span<const uint8_t> file, absl::string_view name = "");

// The sequences of a recorded trace: one range of slots of the file's first axis per sequence, from an index {"<file's
// stem>": {"seq_lens": [rows, …], …}, …} or {"seq_lens": [...]}. `rows` is the number of slots of the file, which the
// sequences must cover. INVALID_ARGUMENT (kField, kRowCount; field "index…"), NOT_FOUND if the index lacks the stem.
absl::StatusOr<std::vector<RowRange>> TraceSequences(absl::string_view index, absl::string_view stem, int64_t rows);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_ROWS_FILE_H_
