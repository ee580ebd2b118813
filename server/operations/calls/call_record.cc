#include "server/operations/calls/call_record.h"

#include "absl/strings/str_cat.h"
#include "server/operations/calls/call_identity.h"

namespace routing_replay::server {
namespace {

absl::string_view Metadata(const grpc::ServerContext& call, const char* key) {
  const auto found = call.client_metadata().find(key);
  if (found == call.client_metadata().end()) return "";
  return {found->second.data(), found->second.size()};
}

}  // namespace

absl::string_view AuthorizationOf(const grpc::ServerContextBase& call) {
  const auto [begin, end] = call.client_metadata().equal_range("authorization");
  if (begin == end || std::next(begin) != end) return "";
  return {begin->second.data(), begin->second.size()};
}

CallRecord::CallRecord(CallBook& book, absl::string_view method, const grpc::ServerContext& call)
    : book_(book), method_(method), call_(call), began_(book.clock.Now()) {
  book_.metrics.Begin(method_);
}

CallRecord::~CallRecord() { End(absl::CancelledError("the call was not answered")); }

void CallRecord::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  const Clock::Duration took = book_.clock.Now() - began_;
  book_.metrics.End(method_, status.code(), took);
  if (!status.ok()) return Refuse(status);
  if (!IsLogged(LogLevel::kDebug)) return;
  LogFields fields = Identity();
  fields.emplace_back("method", std::string(method_));
  fields.emplace_back("took_us", std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  LogEvent(LogLevel::kDebug, "call", "", fields);
}

void CallRecord::Refuse(const absl::Status& status) {
  book_.journal.Note(method_, status, [this] { return Identity(); });
}

void CallRecord::Audit(const char* action, absl::string_view run, const absl::Status& status,
                       const LogFields& what) const {
  LogFields fields = {{"action", action}, {"run", std::string(run)}, {"code", absl::StatusCodeToString(status.code())}};
  fields.insert(fields.end(), what.begin(), what.end());
  const LogFields who = Identity();
  fields.insert(fields.end(), who.begin(), who.end());
  LogEvent(LogLevel::kInfo, "audit", "", fields);
}

LogFields CallRecord::Identity() const {
  if (request_id_.empty()) request_id_ = RequestId(Metadata(call_, kRequestIdKey));
  LogFields fields = {{"request_id", request_id_}};
  std::string trace = TraceParent(Metadata(call_, kTraceParentKey));
  if (!trace.empty()) fields.emplace_back(kTraceParentKey, std::move(trace));
  fields.emplace_back("peer", call_.peer());
  // What a client certificate says of its bearer. It belongs to the connection, as this does; it allows nothing.
  std::string client;
  if (const auto authentication = call_.auth_context(); authentication != nullptr) {
    for (const grpc::string_ref& name : authentication->GetPeerIdentity()) {
      absl::StrAppend(&client, client.empty() ? "" : " ", absl::string_view(name.data(), name.size()));
    }
  }
  if (!client.empty()) fields.emplace_back("client", std::move(client));
  std::string token = book_.access.NameOf(AuthorizationOf(call_));
  if (!token.empty()) fields.emplace_back("token", std::move(token));
  return fields;
}

}  // namespace routing_replay::server
