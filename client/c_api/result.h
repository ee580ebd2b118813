// Builds the results of the C functions: structs of c_api.h with all that they point to, including errors, and objects.
#ifndef CLIENT_C_API_RESULT_H_
#define CLIENT_C_API_RESULT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "routing_replay/c_api.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::c_api {

// Allocates a result and what it points to, which are freed together. Throws std::bad_alloc. Not thread-safe.
class ResultMemory {
 public:
  ResultMemory(const ResultMemory&) = delete;
  ResultMemory& operator=(const ResultMemory&) = delete;

  // Returns zeroed memory.
  template <typename Item>
  absl::Span<Item> Array(size_t count) {
    constexpr size_t kSize = sizeof(Item);  // NOLINT(bugprone-sizeof-expression): of a pointer, too.
    return {static_cast<Item*>(Allocate(count * kSize)), count};
  }
  template <typename Item>
  const Item* Copy(absl::Span<const Item> items) {
    const absl::Span<Item> copy = Array<Item>(items.size());
    std::copy(items.begin(), items.end(), copy.begin());
    return copy.data();
  }
  rr_text Text(absl::string_view text) { return {Copy(absl::MakeConstSpan(text.data(), text.size())), text.size()}; }
  template <typename Strings>
  rr_texts Texts(const Strings& texts) {
    const absl::Span<rr_text> copy = Array<rr_text>(texts.size());
    std::transform(texts.begin(), texts.end(), copy.begin(), [this](const auto& text) { return Text(text); });
    return {copy.data(), copy.size()};
  }
  rr_ranges Ranges(absl::Span<const RowRange> ranges) {
    const absl::Span<rr_range> copy = Array<rr_range>(ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) copy[i] = {ranges[i].begin, ranges[i].end};
    return {copy.data(), copy.size()};
  }
  const rr_weight_span* Weights(absl::Span<const WeightSpan> weights) {
    const absl::Span<rr_weight_span> copy = Array<rr_weight_span>(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      copy[i] = {weights[i].rows.begin, weights[i].rows.end, weights[i].version, Text(weights[i].label)};
    }
    return copy.data();
  }
  void Keep(Buffer buffer);
  // Frees a result from Release; null is allowed.
  static void Free(const void* result);

 protected:
  // `size`: the bytes of the result itself.
  explicit ResultMemory(size_t size);
  ~ResultMemory();

  void* result() const;
  // Returns the result and gives up ownership.
  void* Release();

 private:
  struct Head;

  void* Allocate(size_t bytes);

  Head* head_;
};

// A result of a C function while it is being built.
template <typename T>
class Result : public ResultMemory {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  Result() : ResultMemory(sizeof(T)), value_(new (result()) T()) {}

  T* operator->() { return value_; }
  T& operator*() { return *value_; }
  // Passes the result to the caller, who frees it with rr_free.
  T* Release() { return static_cast<T*>(ResultMemory::Release()); }

 private:
  T* const value_;
};

// Makes a result that is a list; `fill(value, memory, item)` converts each value.
template <typename List, typename Values, typename Fill>
List* NewList(const Values& values, const Fill& fill) {
  using Item = std::remove_const_t<std::remove_pointer_t<decltype(List::data)>>;
  Result<List> result;
  const absl::Span<Item> list = result.template Array<Item>(values.size());
  for (size_t i = 0; i < list.size(); ++i) fill(values[i], result, list[i]);
  *result = {list.data(), list.size()};
  return result.Release();
}

// The outcome of a call; for a flush also the appends that failed.
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

// Stores the value of `made`, converted by `make`, in *out. If `made` has no value, returns its error.
template <typename Out, typename T, typename Make>
CallEnd Into(Out* out, const absl::StatusOr<T>& made, const Make& make) {
  if (!made.ok()) return made.status();
  *out = make(*made);
  return {};
}

// Converts a status to an error; OK becomes NULL. Aborts if there is no memory.
rr_error* NewError(const CallEnd& end) noexcept;
// Converts a status that is not OK to an error inside a result.
void FillError(const absl::Status& status, ResultMemory& memory, rr_error& error);

// Returns the result of `body`, and converts exceptions to errors: out of memory to RESOURCE_EXHAUSTED, all others to
// INTERNAL.
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

// Base class of the objects behind the opaque types of c_api.h and of the trainer's capi.h.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  // Called by rr_object_free.
  virtual void Free() noexcept { delete this; }

 protected:
  virtual ~Object() = default;
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_RESULT_H_
