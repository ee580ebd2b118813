// What this server can do, by name: a client asks for the features that it cannot work without.
#ifndef SERVER_SERVICE_FEATURES_H_
#define SERVER_SERVICE_FEATURES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay::server {

absl::Span<const char* const> ServerFeatures();

// FAILED_PRECONDITION (kVersionMismatch) naming both versions if the client is of another major version, or older
// than the two minor versions before this one; a newer client uses no feature that is missing. No version: fits.
// UNIMPLEMENTED (kVersionMismatch) naming a required feature that is missing.
absl::Status CheckClient(absl::string_view server_version, absl::string_view client_version,
                         absl::Span<const std::string> required_features);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_FEATURES_H_
