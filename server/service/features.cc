#include "server/service/features.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr const char* kFeatures[] = {"append-credit", "encoded-blocks", "packed",    "prefix-reference",
                                     "provenance",    "restart-nonce",  "resume-at", "tensor-payload",
                                     "token-checks",  "waiting-read"};
constexpr int kMinorVersionsBack = 2;

struct Version {
  int major = 0;
  int minor = 0;
};

std::optional<Version> ParseVersion(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  Version version;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &version.major) || !absl::SimpleAtoi(parts[1], &version.minor)) {
    return std::nullopt;
  }
  return version;
}

absl::Status Mismatch(absl::StatusCode code, absl::string_view what, absl::string_view server,
                      absl::string_view client) {
  return MakeError(code,
                   absl::StrCat(what, "; server ", server, ", client ", client.empty() ? "of unknown version" : client),
                   {.reason = Reason::kVersionMismatch,
                    .server_version = std::string(server),
                    .client_version = std::string(client)});
}

}  // namespace

absl::Span<const char* const> ServerFeatures() { return kFeatures; }

absl::Status CheckClient(absl::string_view server_version, absl::string_view client_version,
                         absl::Span<const std::string> required_features) {
  if (!client_version.empty()) {
    const auto server = ParseVersion(server_version);
    const auto client = ParseVersion(client_version);
    if (!client) {
      return MakeError(absl::StatusCode::kInvalidArgument,
                       absl::StrCat("client_version: '", client_version, "' is not major.minor.patch"),
                       {.reason = Reason::kField, .field = "client_version"});
    }
    if (client->major != server->major || client->minor + kMinorVersionsBack < server->minor) {
      return Mismatch(absl::StatusCode::kFailedPrecondition,
                      "this server serves its own and the two minor versions before", server_version, client_version);
    }
  }
  for (const std::string& feature : required_features) {
    const bool known =
        std::any_of(std::begin(kFeatures), std::end(kFeatures), [&](const char* f) { return feature == f; });
    if (known) continue;
    return Mismatch(absl::StatusCode::kUnimplemented,
                    absl::StrCat("required_features: '", feature, "' is not known here"), server_version,
                    client_version);
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::server
