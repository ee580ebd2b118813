// How a C function of ours fails. Shared by the C APIs of the client and of the trainer: each derives its opaque types
// (`struct rr_error : capi::ErrorObject`) from these.
#ifndef PROTO_CAPI_ERROR_H_
#define PROTO_CAPI_ERROR_H_

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::capi {

// A status that is not OK, on the other side of a C border. Immutable.
class ErrorObject {
 public:
  explicit ErrorObject(absl::Status status);

  const absl::Status& status() const { return status_; }
  // The google.rpc code.
  int code() const { return static_cast<int>(status_.code()); }
  // The form of proto/json/status_json.h, NUL-terminated, as long as the object lives.
  const char* json() const { return json_.c_str(); }

 private:
  absl::Status status_;
  std::string json_;
};

// Runs `body`, which returns a status, and gives NULL if that is OK, else a new error that the caller owns. No
// exception leaves: one of the libraries below becomes INTERNAL, memory that cannot be had RESOURCE_EXHAUSTED (dies
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

}  // namespace routing_replay::capi

#endif  // PROTO_CAPI_ERROR_H_
