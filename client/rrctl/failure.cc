#include "client/rrctl/failure.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/rrctl/terminal.h"
#include "proto/json/status_json.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr ExitMeaning kMeanings[] = {
    {kExitOk, "done; also a watch that was ended with Ctrl-C"},
    {kExitFailed,
     "the server refused, something is not there or damaged, or the output was not taken; diff: there are "
     "differences, and nothing else; doctor: a check failed, and nothing else"},
    {kExitUsage, "the command line, the address, or a file of TLS or tokens is wrong; no server was asked"},
    {kExitUnreachable,
     "no server there within --timeout, none that answers in time, or one that is shutting down; with several "
     "servers, any of them"},
    {kExitUndecided, "diff and doctor have no answer, for a reason that ends other commands with 1"},
    {kExitInterrupted, "a bench that was stopped with Ctrl-C; its run is dropped"},
};

// What is part of the command line, under the names of ClientOptions or of flags. No server names these fields.
bool IsOfTheCommandLine(absl::string_view field) {
  constexpr absl::string_view kSettings[] = {"endpoint", "cacert", "cert", "key", "token_file"};
  return absl::StartsWith(field, "--") ||
         std::find(std::begin(kSettings), std::end(kSettings), field) != std::end(kSettings);
}

}  // namespace

absl::Span<const ExitMeaning> ExitMeanings() { return kMeanings; }

ExitCode ExitCodeFor(const absl::Status& status, ExitCode failed) {
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (absl::IsInvalidArgument(status) && detail && IsOfTheCommandLine(detail->field)) return kExitUsage;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return failed;
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

std::string HintFor(const absl::Status& status, ExitCode code) {
  if (code == kExitUnreachable) return "; `rrctl doctor` says why and what to do";
  if (absl::IsUnauthenticated(status)) return "; --token-file names a file with the token to show";
  return "";
}

}  // namespace routing_replay::client
