#include "tests/quickstart/engine_payload.h"

#include <bit>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::quickstart {
namespace {

static_assert(std::endian::native == std::endian::little, "ids are written in the machine's byte order");

template <typename Function>
void ForEachId(const testing::Routes& routes, const std::vector<RowRange>& recorded, Function function) {
  const int64_t row_ids = int64_t{routes.layers} * routes.top_k;
  for (const RowRange range : recorded) {
    for (int64_t i = range.begin * row_ids; i < range.end * row_ids; ++i) function(routes.ids[i]);
  }
}

template <typename Id>
std::string IdBytes(const testing::Routes& routes, const std::vector<RowRange>& recorded) {
  std::string bytes;
  bytes.reserve(TotalRows(recorded) * routes.layers * routes.top_k * sizeof(Id));
  ForEachId(routes, recorded, [&](uint16_t id) {
    const Id value = static_cast<Id>(id);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  });
  return bytes;
}

// An .npy file of version 1.0. Spaces pad the header so that the data starts at a multiple of 64.
std::string NpyFile(const char* dtype, const std::vector<int64_t>& shape, const std::string& data) {
  constexpr size_t kPreamble = 10;
  std::string header = absl::StrCat("{'descr': '", dtype, "', 'fortran_order': False, 'shape': (", shape[0], ", ",
                                    shape[1], ", ", shape[2], "), }");
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string file("\x93NUMPY\x01\x00", 8);
  file.push_back(static_cast<char>(header.size() & 0xFF));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file.append(header).append(data);
}

}  // namespace

EnginePayload MakeEnginePayload(PayloadForm form, const testing::Routes& routes,
                                const std::vector<RowRange>& recorded) {
  EnginePayload payload;
  TensorDescription& tensor = payload.tensor;
  tensor.shape = {TotalRows(recorded), routes.layers, routes.top_k};
  tensor.layer_basis = LayerBasis::kMoeLayers;
  if (form == PayloadForm::kNpy || form == PayloadForm::kBase64Npy) {
    const bool narrow = routes.num_experts <= 256;
    tensor.encoding = form == PayloadForm::kNpy ? Encoding::kNpy : Encoding::kBase64Npy;
    payload.bytes = NpyFile(narrow ? "|u1" : "<u2", tensor.shape,
                            narrow ? IdBytes<uint8_t>(routes, recorded) : IdBytes<uint16_t>(routes, recorded));
  } else {
    tensor.encoding = form == PayloadForm::kBase64Int32 ? Encoding::kBase64 : Encoding::kRaw;
    tensor.dtype = DType::kI32;
    payload.bytes = IdBytes<int32_t>(routes, recorded);
  }
  if (tensor.encoding == Encoding::kBase64 || tensor.encoding == Encoding::kBase64Npy) {
    payload.bytes = absl::Base64Escape(payload.bytes);
  }
  return payload;
}

int64_t JsonListBytes(const testing::Routes& routes, const std::vector<RowRange>& recorded) {
  int64_t digits = 0;
  ForEachId(routes, recorded, [&](uint16_t id) { digits += 1 + (id >= 10) + (id >= 100) + (id >= 1000); });
  // A list of n elements has two brackets and n - 1 commas, so n + 1 characters besides its elements.
  const int64_t rows = TotalRows(recorded);
  const int64_t punctuation = rows * routes.layers * (routes.top_k + 1) + rows * (routes.layers + 1) + rows + 1;
  return digits + punctuation;
}

int64_t Base64Int32Bytes(const testing::Routes& routes, const std::vector<RowRange>& recorded) {
  const int64_t bytes = TotalRows(recorded) * routes.layers * routes.top_k * static_cast<int64_t>(sizeof(int32_t));
  return (bytes + 2) / 3 * 4;
}

}  // namespace routing_replay::quickstart
