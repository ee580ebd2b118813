// How C functions of the trainer take and give bytes, and how they fail. Opaque types derive from what is here:
// `struct rrt_error : capi::ErrorObject`.
#ifndef TRAINER_PLUGIN_CAPI_BOUNDARY_H_
#define TRAINER_PLUGIN_CAPI_BOUNDARY_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/json/json.h"
#include "proto/wire/buffer.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::capi {

// A status that is not OK, on the other side of a C border. Immutable.
class ErrorObject {
 public:
  explicit ErrorObject(absl::Status status) : status_(std::move(status)), json_(DumpJson(StatusToJson(status_))) {}

  const absl::Status& status() const { return status_; }
  // The google.rpc code.
  int code() const { return static_cast<int>(status_.code()); }
  // The form of StatusToJson (proto/json/json.h), NUL-terminated, as long as the object lives.
  const char* json() const { return json_.c_str(); }

 private:
  absl::Status status_;
  std::string json_;
};

// Runs `body`, which returns a status, and gives NULL if that is OK, else a new error that the caller owns. No
// exception leaves: one of the libraries below becomes INTERNAL, no memory RESOURCE_EXHAUSTED (dies
// where there is not even memory to say so).
template <typename Error, typename Body>
Error* Barrier(Body&& body) noexcept {
  absl::Status status;
  try {
    status = std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    status = absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  } catch (...) {
    status = absl::InternalError("unexpected exception");
  }
  return status.ok() ? nullptr : new Error(std::move(status));  // NOLINT(bugprone-unhandled-exception-at-new): as said.
}

// Runs `body` for a function that has no error to give: an exception, for want of memory, ends the process.
template <typename Body>
auto NoThrow(Body&& body) noexcept {
  return std::forward<Body>(body)();
}

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

#endif  // TRAINER_PLUGIN_CAPI_BOUNDARY_H_
