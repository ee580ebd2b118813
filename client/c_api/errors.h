// Errors of C++ as those of C.
#ifndef CLIENT_C_API_ERRORS_H_
#define CLIENT_C_API_ERRORS_H_

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/c_api/gate.h"
#include "client/c_api/result.h"
#include "routing_replay/c_api.h"
#include "routing_replay/client.h"

namespace routing_replay::c_api {

// How a call ended. A flush says which appends failed.
struct CallEnd {
  CallEnd(absl::Status ended = absl::OkStatus()) : status(std::move(ended)) {}  // NOLINT(google-explicit-constructor)
  CallEnd(absl::Status ended, AppendFailures which) : status(std::move(ended)), failures(std::move(which)) {}

  absl::Status status;
  AppendFailures failures;
};

template <typename Int>
rr_integer Optional(const std::optional<Int>& value) {
  return {value.value_or(0), value.has_value() ? 1 : 0};
}
inline std::optional<int64_t> Optional(const rr_integer& value) {
  return value.present != 0 ? std::optional(value.value) : std::nullopt;
}

// NULL if it is OK. Dies where there is no memory for it.
rr_error* NewError(const CallEnd& end) noexcept;
// The same as part of a result.
void FillError(const absl::Status& status, ResultMemory& memory, rr_error& error);

// What `body` returns; no exception leaves: one of the libraries below becomes INTERNAL, and no
// memory RESOURCE_EXHAUSTED.
template <typename Body>
CallEnd WithoutExceptions(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("unexpected exception: ", e.what()));
  } catch (...) {
    return absl::InternalError("unexpected exception");
  }
}

// One C function, for the thread that is in it.
class Inside {
 public:
  Inside() : usable_(Gate::Shared().Enter()) {}
  ~Inside() { Gate::Shared().Leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  bool usable() const { return usable_; }

 private:
  const bool usable_;
};

// The body of every C function that can fail …
template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  const Inside inside;
  if (!inside.usable()) {
    return NewError(absl::FailedPreconditionError(
        "this process was forked while routing_replay could not be brought to rest, and cannot use it"));
  }
  return NewError(WithoutExceptions(std::forward<Body>(body)));
}

// … and of every other: an exception, for want of memory, ends the process. Does nothing where nothing can be used.
template <typename Body>
auto Always(Body&& body) noexcept {
  const Inside inside;
  using Value = decltype(std::forward<Body>(body)());
  if (inside.usable()) return std::forward<Body>(body)();
  return Value();
}

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_ERRORS_H_
