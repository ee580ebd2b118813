#include "client/rrctl/failure.h"

#include "absl/strings/str_cat.h"
#include "client/rrctl/terminal.h"
#include "proto/json/status_json.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr ExitMeaning kMeanings[] = {
    {kExitOk, "done; a watch that ended with Ctrl-C too"},
    {kExitFailed,
     "the server refused, something is not there or damaged, or the output was not taken; diff: there are "
     "differences; doctor: a check failed"},
    {kExitUsage, "the command line or the address is wrong; no server was asked"},
    {kExitUnreachable,
     "no server there within --timeout, none that answers in time, or one that is shutting down; of several, any of "
     "them"},
    {kExitInterrupted, "a bench that was stopped with Ctrl-C; its run is dropped"},
};

}  // namespace

absl::Span<const ExitMeaning> ExitMeanings() { return kMeanings; }

ExitCode ExitCodeFor(const absl::Status& status) {
  // The address is part of the command line, and only the client names this field.
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (absl::IsInvalidArgument(status) && detail && detail->field == "endpoint") return kExitUsage;
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
