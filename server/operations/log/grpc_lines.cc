#include "server/operations/log/grpc_lines.h"

#include <grpc/support/log.h>

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/operations/log/event_log.h"
#include "server/operations/log/repeat_filter.h"

namespace routing_replay::server {
namespace {

constexpr std::chrono::seconds kInterval(10);

// "chttp2_server.cc:1045", whatever folder it was built in.
std::string PlaceOf(const gpr_log_func_args& line) {
  const absl::string_view file = line.file;
  return absl::StrCat(file.substr(file.rfind('/') + 1), ":", line.line);
}

void LogLine(gpr_log_func_args* line) {
  if (absl::StartsWith(line->message, "assertion failed")) {  // It aborts next.
    LogEvent(LogLevel::kError, "grpc", line->message, {{"place", PlaceOf(*line)}});
    return FlushLog();
  }
  // Lives as long as gRPC's threads, which may outlive static objects.
  static auto* const filter = new RepeatFilter(Clock::Real(), kInterval);
  std::string place = PlaceOf(*line);
  const auto held_back = filter->Pass(place);
  if (!held_back) return;
  LogFields fields = {{"place", std::move(place)}};
  if (*held_back > 0) fields.emplace_back("held_back", *held_back);
  LogEvent(LogLevel::kWarning, "grpc", line->message, fields);
}

}  // namespace

void LogGrpcLines() { gpr_set_log_function(LogLine); }

}  // namespace routing_replay::server
