#include "client/rrctl/failure.h"

#include "absl/strings/str_cat.h"
#include "client/rrctl/terminal.h"
#include "proto/json/status_json.h"

namespace routing_replay {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitFailed;
  }
}

std::string FailureText(const absl::Status& status) {
  const nlohmann::json json = StatusToJson(status);
  std::string text = json["code_name"];
  std::string fields;
  for (const auto& [key, value] : json.items()) {
    if (key == "code" || key == "code_name" || key == "message") continue;
    if (key == "reason") {
      absl::StrAppend(&text, " (", value.get<std::string>(), ")");
    } else {
      absl::StrAppend(&fields, fields.empty() ? "" : " ", key, "=",
                      value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  absl::StrAppend(&text, ": ", absl::string_view(status.message()));
  if (!fields.empty()) absl::StrAppend(&text, " [", fields, "]");
  return Printable(text);
}

}  // namespace routing_replay
