// Random arguments for the C functions that need no server. A function must either succeed with a result that lies
// within its input, or return an error with a code and a message, and no result.
//
// The first byte of an input chooses the function, the next bytes become its numbers and names, the rest its data.
#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "routing_replay/c_api.h"
#include "tests/fuzz/smoke.h"

namespace {

// Takes numbers and bytes from the front of an input; an exhausted input yields zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t Byte() { return at_ == end_ ? 0 : *at_++; }
  // Returns a small number in most cases, and sometimes any 64-bit number.
  int64_t Number() {
    const uint8_t first = Byte();
    if (first < 240) return first - 8;
    int64_t number = 0;
    const size_t size = std::min<size_t>(sizeof(number), end_ - at_);
    std::memcpy(&number, at_, size);
    at_ += size;
    return number;
  }
  template <typename T>
  std::vector<T> Numbers() {
    std::vector<T> numbers(Byte() % 8);
    for (T& number : numbers) number = static_cast<T>(Number());
    return numbers;
  }
  // Returns one of `names`, or up to seven bytes of the input.
  rr_text Name(std::initializer_list<absl::string_view> names) {
    const size_t chosen = Byte() % (names.size() + 1);
    if (chosen < names.size()) return {names.begin()[chosen].data(), names.begin()[chosen].size()};
    return Bytes(Byte() % 8);
  }
  rr_text Bytes(size_t most) {
    const rr_text bytes{reinterpret_cast<const char*>(at_), std::min<size_t>(most, end_ - at_)};
    at_ += bytes.size;
    return bytes;
  }
  rr_text Rest() { return Bytes(end_ - at_); }

 private:
  const uint8_t* at_;
  const uint8_t* const end_;
};

// Returns whether the call succeeded; checks that there is either a result or a well-formed error, and frees the error.
// `result` is a reference because the call sets it in another argument of the same expression.
template <typename T>
bool Succeeded(rr_error* error, const T* const& result) {
  Require((error == nullptr) == (result != nullptr), "there is both a result and an error, or neither");
  if (error == nullptr) return true;
  Require(error->code > 0 && error->code <= 16 && error->code_name.size > 0, "an error without a code");
  Require(error->message.size > 0, "an error without a message");
  Require(error->code != 2 && error->code != 13, "an argument is taken for a bug of the library");  // UNKNOWN, INTERNAL
  rr_free(error);
  return false;
}

void RequireWithin(rr_range part, size_t size) {
  Require(0 <= part.begin && part.begin <= part.end && part.end <= static_cast<int64_t>(size), "a part outside");
}

void CheckGeometry(Input input) {
  const auto layers = static_cast<int32_t>(input.Number());
  const auto moe = input.Numbers<int32_t>();
  std::vector<int32_t> experts(moe.size()), top_k(moe.size());
  for (size_t i = 0; i < moe.size(); ++i) {
    experts[i] = static_cast<int32_t>(input.Number());
    top_k[i] = static_cast<int32_t>(input.Number());
  }
  const rr_geometry geometry{layers, moe.data(), experts.data(), top_k.data(), moe.size()};
  const rr_geometry_facts* facts = nullptr;
  if (!Succeeded(rr_geometry_check(&geometry, &facts), facts)) return;
  const auto slots = std::max_element(top_k.begin(), top_k.end());
  Require(facts->max_top_k == *slots, "max_top_k is not the largest top_k");
  Require(facts->id_bytes == 1 || facts->id_bytes == 2, "ids have another width");
  rr_free(facts);
}

rr_tensor Tensor(Input& input, const std::vector<int64_t>& shape, const std::vector<int32_t>& layers) {
  rr_tensor tensor{};
  tensor.encoding = input.Name({"RAW", "NPY", "BASE64", "BASE64_NPY"});
  tensor.compression = input.Name({"NONE", "ZSTD"});
  tensor.dtype = input.Name({"", "U8", "I8", "U16", "I16", "I32", "I64"});
  tensor.layer_basis = input.Name({"", "ALL_LAYERS", "MOE_LAYERS", "EXPLICIT"});
  tensor.raw_size = input.Number();
  tensor.shape = shape.data();
  tensor.shape_count = shape.size();
  tensor.layer_ids = layers.data();
  tensor.layer_count = layers.size();
  const rr_text rest = input.Rest();
  tensor.data = rest.data;
  tensor.size = rest.size;
  return tensor;
}

void CheckShape(Input input) {
  const auto shape = input.Numbers<int64_t>();
  const auto layers = input.Numbers<int32_t>();
  const rr_tensor tensor = Tensor(input, shape, layers);
  const rr_form* form = nullptr;
  if (!Succeeded(rr_payload_shape(&tensor, &form), form)) return;
  Require(shape.empty() || form->shape_count == shape.size(), "the number of axes differs from the stated shape");
  rr_free(form);
}

void CheckRoutes(Input input) {
  const rr_text body = input.Rest();
  const rr_routes* routes = nullptr;
  if (!Succeeded(rr_find_routes(body.data, body.size, &routes), routes)) return;
  for (size_t i = 0; i < routes->count; ++i) {
    const rr_range text = routes->data[i].data;
    RequireWithin(text, body.size);
    Require(text.begin > 0 && body.data[text.begin - 1] == '"' && body.data[text.end] == '"', "a text without quotes");
  }
  rr_free(routes);
}

void CheckTokens(Input input) {
  rr_tokens tokens{};
  tokens.dtype = input.Name({"uint32", "int32", "int64", "uint64", "uint16", "uint8", "float32"});
  tokens.axes = static_cast<int32_t>(input.Number());
  const rr_text rest = input.Rest();
  tokens.data = rest.data;
  tokens.size = rest.size;
  const rr_ids* ids = nullptr;
  if (!Succeeded(rr_token_ids(&tokens, {"tokens", 6}, {"s", 1}, &ids), ids)) return;
  Require(ids->count <= tokens.size, "more ids than bytes");
  const size_t half = ids->count / 2;
  const uint32_t parts = rr_token_crc(rr_token_crc(0, ids->data, half), ids->data + half, ids->count - half);
  Require(parts == rr_token_crc(0, ids->data, ids->count), "a token check depends on how the ids are split");
  rr_free(ids);
}

void CheckHandle(Input input) {
  int64_t handle = 0;
  const rr_text sample = input.Rest();
  rr_error* const error = rr_sample_handle(nullptr, sample, &handle);
  if (!Succeeded(error, error == nullptr ? &handle : nullptr)) return;
  Require(handle > 0, "a handle is not positive");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  switch (input.Byte() % 5) {
    case 0:
      CheckGeometry(input);
      break;
    case 1:
      CheckShape(input);
      break;
    case 2:
      CheckRoutes(input);
      break;
    case 3:
      CheckTokens(input);
      break;
    default:
      CheckHandle(input);
  }
  return 0;
}
