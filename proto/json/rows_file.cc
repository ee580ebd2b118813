#include "proto/json/rows_file.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/json/json.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/npy.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 20;
constexpr size_t kMaxAxes = 8;
constexpr uint8_t kNpyMagic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

absl::Status Malformed(Reason reason, absl::string_view what) {
  return Invalid(reason, "payload", absl::StrCat("safetensors: ", what));
}

std::optional<std::vector<int64_t>> Numbers(const json& value, size_t limit) {
  if (!value.is_array() || value.size() > limit) return std::nullopt;
  for (const json& number : value) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  }
  return value.get<std::vector<int64_t>>();
}

DType DTypeOf(const std::string& name) {
  constexpr std::pair<const char*, DType> kNames[] = {{"U8", DType::kU8},   {"I8", DType::kI8},   {"U16", DType::kU16},
                                                      {"I16", DType::kI16}, {"I32", DType::kI32}, {"I64", DType::kI64}};
  for (const auto& [known, dtype] : kNames) {
    if (name == known) return dtype;
  }
  return DType::kUnspecified;
}

// True if the elements of the shape take exactly the tensor's bytes.
bool Fits(const SafeTensor& tensor) {
  int64_t bytes = DTypeBytes(tensor.dtype);
  for (const int64_t axis : tensor.shape) {
    if (__builtin_mul_overflow(bytes, axis, &bytes)) return false;
  }
  return bytes == static_cast<int64_t>(tensor.data.size());
}

absl::StatusOr<SafeTensor> ReadTensor(const std::string& name, const json& entry, absl::Span<const uint8_t> data) {
  SafeTensor tensor{.name = name};
  const auto shape = Numbers(entry.value("shape", json()), kMaxAxes);
  const auto offsets = Numbers(entry.value("data_offsets", json()), 2);
  const json dtype = entry.value("dtype", json());
  if (!shape || !offsets || offsets->size() != 2 || !dtype.is_string()) {
    return Malformed(Reason::kEncoding, absl::StrCat(name, " must be an object with dtype, shape and data_offsets"));
  }
  if ((*offsets)[0] > (*offsets)[1] || (*offsets)[1] > static_cast<int64_t>(data.size())) {
    return Malformed(Reason::kLength, absl::StrCat(name, " has data_offsets outside the file"));
  }
  tensor.dtype_name = dtype.get<std::string>();
  tensor.dtype = DTypeOf(tensor.dtype_name);
  tensor.shape = *shape;
  tensor.data = data.subspan((*offsets)[0], (*offsets)[1] - (*offsets)[0]);
  if (tensor.dtype == DType::kUnspecified || Fits(tensor)) return tensor;
  return Malformed(Reason::kLength,
                   absl::StrCat(name, " has ", tensor.data.size(), " bytes, which does not match its shape"));
}

bool IsRows(const SafeTensor& tensor) { return tensor.dtype != DType::kUnspecified && tensor.shape.size() == 3; }

std::string Names(const std::vector<SafeTensor>& tensors) {
  return absl::StrJoin(tensors, ", ", [](std::string* out, const SafeTensor& tensor) {
    absl::StrAppend(out, tensor.name, " ", tensor.dtype_name, "[", absl::StrJoin(tensor.shape, ", "), "]");
  });
}

}  // namespace

absl::StatusOr<std::vector<SafeTensor>> ParseSafeTensors(absl::Span<const uint8_t> file) {
  uint64_t length = 0;
  if (file.size() < kLengthBytes) return Malformed(Reason::kEncoding, "shorter than the length field of the header");
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    return Malformed(Reason::kEncoding, absl::StrCat("the header states a length of ", length,
                                                     " bytes; it is truncated or longer than 1 MiB"));
  }
  const uint8_t* text = file.data() + kLengthBytes;
  const json header = json::parse(text, text + length, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return Malformed(Reason::kEncoding, "the header must be a JSON object");
  const absl::Span<const uint8_t> data = file.subspan(kLengthBytes + length);
  std::vector<SafeTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (!entry.is_object()) return Malformed(Reason::kEncoding, absl::StrCat(name, " must be an object"));
    RR_ASSIGN_OR_RETURN(auto tensor, ReadTensor(name, entry, data));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<RowsFile> OpenRowsFile(absl::Span<const uint8_t> file, absl::string_view name) {
  if (file.size() >= sizeof(kNpyMagic) && std::memcmp(file.data(), kNpyMagic, sizeof(kNpyMagic)) == 0) {
    RR_ASSIGN_OR_RETURN(auto header, ParseNpyHeader(file));
    return RowsFile{.tensor = {.dtype = header.dtype, .shape = std::move(header.shape)},
                    .payload = file.subspan(header.data_offset)};
  }
  RR_ASSIGN_OR_RETURN(const auto tensors, ParseSafeTensors(file));
  std::vector<const SafeTensor*> found;
  for (const SafeTensor& tensor : tensors) {
    if (name.empty() ? IsRows(tensor) : tensor.name == name) found.push_back(&tensor);
  }
  if (found.size() != 1) {
    return absl::NotFoundError(
        absl::StrCat(name.empty() ? absl::StrCat(found.size(), " tensors could be the rows; give the name of one")
                                  : absl::StrCat("no tensor \"", name, "\""),
                     "; the file has ", Names(tensors)));
  }
  if (!IsRows(*found[0])) {
    return Malformed(found[0]->shape.size() == 3 ? Reason::kDType : Reason::kShape,
                     absl::StrCat(Names({*found[0]}), " must be integer ids of shape [rows, layers, K]"));
  }
  return RowsFile{.tensor = {.dtype = found[0]->dtype, .shape = found[0]->shape}, .payload = found[0]->data};
}

absl::StatusOr<std::vector<RowRange>> TraceSequences(absl::string_view index, absl::string_view stem, int64_t rows) {
  RR_ASSIGN_OR_RETURN(const auto parsed, ParseJson(index, "index"));
  if (!parsed.is_object()) return Invalid(Reason::kField, "index", "must be an object");
  const json* entry = &parsed;
  if (!entry->contains("seq_lens")) {
    const auto found = parsed.find(std::string(stem));
    if (found == parsed.end()) return absl::NotFoundError(absl::StrCat("index: there is no \"", stem, "\""));
    entry = &*found;
  }
  const auto lengths = entry->is_object() ? Numbers(entry->value("seq_lens", json()), kMaxRows) : std::nullopt;
  if (!lengths)
    return Invalid(Reason::kField, "index.seq_lens", "must be a list with the number of rows of each sequence");
  std::vector<RowRange> sequences;
  int64_t next = 0;
  for (const int64_t length : *lengths) {
    if (length > rows - next) break;
    sequences.push_back(RowRange::OfSize(next, length));
    next += length;
  }
  if (next == rows && sequences.size() == lengths->size()) return sequences;
  return Invalid(Reason::kRowCount, "index.seq_lens", absl::StrCat("must add up to the file's ", rows, " rows"));
}

}  // namespace wire
}  // namespace routing_replay
