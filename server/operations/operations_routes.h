// What the operations port answers, path by path.
//
//   GET  /healthz           200, or 503 with the reason where only a new start helps
//   GET  /readyz            200, or 503 with the reason
//   GET  /metrics           the format of Prometheus, version 0.0.4
//   GET  /api/v1/status     the status as JSON
//   GET  /statusz           the same for people
//   GET  /api/v1/log-level  {"level":"info"}
//   POST /api/v1/log-level  {"level":"debug"}
//
// The first three are for everybody who reaches the port. The others name runs: where the server has tokens they need
// one with the scope read or admin on every run, and POST one with admin. A browser may give the token as the password
// of basic authentication, for what is read. Where it has none, see MakeOperatorCheck.
#ifndef SERVER_OPERATIONS_OPERATIONS_ROUTES_H_
#define SERVER_OPERATIONS_OPERATIONS_ROUTES_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/operations/http/http_message.h"
#include "server/operations/readiness.h"
#include "server/security/scope.h"

namespace routing_replay::server {

// The name of the token if whoever asks may, empty where none is asked for: the bearer of `authorization` (which stands
// for that of the request) has one of the scopes on every run. UNAUTHENTICATED where it is nobody; FAILED_PRECONDITION
// saying how to ask, where this is no matter of tokens.
using OperatorCheck = std::function<absl::StatusOr<std::string>(const HttpRequest& request,
                                                                absl::string_view authorization, ScopeSet any_of)>;

struct OperationsRoutes {
  const Readiness& readiness;
  OperatorCheck check;
  // Of the process alone before the server has started. Thread-safe, as the others.
  std::function<std::string()> metrics;
  // Each is called once the server has started, and not before.
  std::function<std::string()> status_json;
  std::function<std::string(bool refreshing)> status_page;

  // Thread-safe.
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  HttpResponse AnswerOperator(const HttpRequest& request) const;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_OPERATIONS_ROUTES_H_
