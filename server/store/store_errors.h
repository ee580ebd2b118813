// Errors that every store makes alike.
#ifndef SERVER_STORE_STORE_ERRORS_H_
#define SERVER_STORE_STORE_ERRORS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// NOT_FOUND (kNoRun).
absl::Status NoRunError(absl::string_view run);
// NOT_FOUND (kNoSample). `sample`: its id, or a handle in words.
absl::Status NoSampleError(absl::string_view sample);
// ALREADY_EXISTS (kHandleCollision): sample `other` of the run has the handle.
absl::Status HandleCollisionError(absl::string_view sample, absl::string_view other);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_ERRORS_H_
