// Bytes that a C function of ours takes and gives away.
#ifndef PROTO_CAPI_BYTES_H_
#define PROTO_CAPI_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/json/json_object.h"
#include "proto/wire/buffer.h"

namespace routing_replay::capi {

// Read-only bytes at a fixed address, kept alive by whatever owns them. Base of the opaque types of the C APIs.
class BytesObject {
 public:
  BytesObject(absl::Span<const uint8_t> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  explicit BytesObject(std::string text) {
    auto owned = std::make_shared<const std::string>(std::move(text));
    bytes_ = {reinterpret_cast<const uint8_t*>(owned->data()), owned->size()};
    owner_ = std::move(owned);
  }
  explicit BytesObject(Buffer buffer) {
    auto owned = std::make_shared<const Buffer>(std::move(buffer));
    bytes_ = owned->span();
    owner_ = std::move(owned);
  }

  const uint8_t* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  absl::Span<const uint8_t> bytes_;
  std::shared_ptr<const void> owner_;
};

// Arguments of a C function.
inline absl::string_view Text(const char* data, size_t size) { return {data == nullptr ? "" : data, size}; }
inline absl::Span<const uint8_t> Bytes(const void* data, size_t size) {
  return {static_cast<const uint8_t*>(data), size};
}

// Gives the caller an object of its own.
template <typename Object, typename Content>
absl::Status Give(Content content, Object** out) {
  *out = new Object(std::move(content));
  return absl::OkStatus();
}
template <typename Object>
absl::Status Give(const nlohmann::json& json, Object** out) {
  return Give(DumpJson(json), out);
}

}  // namespace routing_replay::capi

#endif  // PROTO_CAPI_BYTES_H_
