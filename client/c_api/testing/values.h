// Makes and reads values and errors of the C functions in tests.
#ifndef CLIENT_C_API_TESTING_VALUES_H_
#define CLIENT_C_API_TESTING_VALUES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "routing_replay/c_api.h"

namespace routing_replay::client {

inline rr_text Text(absl::string_view text) { return {text.data(), text.size()}; }
inline std::string String(rr_text text) { return {text.data, text.size}; }
// Returns the error's fields and frees it.
inline std::string TakeText(const rr_bytes* bytes) {
  std::string text(static_cast<const char*>(bytes->data), bytes->size);
  rr_free(bytes);
  return text;
}

// Takes an error apart.
struct Failure {
  Failure() = default;
  explicit Failure(const rr_error* error) {
    if (error == nullptr) return;
    code = static_cast<absl::StatusCode>(error->code);
    reason = String(error->reason);
    field = String(error->field);
    sample = String(error->sample);
    message = String(error->message);
    row = error->row.value;
    layer = error->layer.value;
    rr_free(error);
  }
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string reason, field, sample, message;
  int64_t row = 0, layer = 0;
};

#define EXPECT_DONE(error) EXPECT_EQ(::routing_replay::client::Failure(error).message, "")
#define ASSERT_DONE(error) ASSERT_EQ(::routing_replay::client::Failure(error).message, "")

}  // namespace routing_replay::client

#endif  // CLIENT_C_API_TESTING_VALUES_H_
