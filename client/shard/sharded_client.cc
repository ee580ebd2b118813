#include "client/shard/sharded_client.h"

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/run.h"
#include "client/shard/member.h"
#include "client/shard/sharded_run.h"
#include "client/summaries.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

std::vector<RunSummary> Merged(std::vector<std::vector<RunSummary>> parts) {
  std::map<std::string, RunSummary> runs;
  for (std::vector<RunSummary>& part : parts) {
    for (RunSummary& run : part) {
      const auto [at, is_new] = runs.try_emplace(run.run, run);
      if (is_new) continue;
      at->second.samples += run.samples;
      at->second.sealed_samples += run.sealed_samples;
      at->second.committed_rows += run.committed_rows;
      at->second.stored_bytes += run.stored_bytes;
    }
  }
  std::vector<RunSummary> merged;
  for (auto& [name, run] : runs) merged.push_back(std::move(run));
  return merged;
}

ServerSummary Merged(const std::vector<ServerSummary>& parts) {
  ServerSummary all{.uptime = parts[0].uptime};
  std::set<std::string> versions, stores;
  std::map<std::string, int64_t> counters;
  for (const ServerSummary& part : parts) {
    versions.insert(part.version);
    stores.insert(part.store);
    all.budget_bytes += part.budget_bytes;
    all.stored_bytes += part.stored_bytes;
    all.reserved_bytes += part.reserved_bytes;
    all.spill_budget_bytes += part.spill_budget_bytes;
    all.spilled_bytes += part.spilled_bytes;
    all.samples += part.samples;
    all.runs = std::max(all.runs, part.runs);
    all.uptime = std::min(all.uptime, part.uptime);
    all.draining = all.draining || part.draining;
    for (const auto& [name, value] : part.counters) counters[name] += value;
  }
  all.version = absl::StrJoin(versions, ", ");
  all.store = absl::StrJoin(stores, ", ");
  all.counters.assign(counters.begin(), counters.end());
  return all;
}

class ShardedClient final : public Client {
 public:
  explicit ShardedClient(std::shared_ptr<const MemberSet> members) : members_(std::move(members)) {}

  absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                               const RunSettings& settings, std::optional<int64_t> resume_at) override {
    v1::OpenRunRequest request = MakeOpenRun(run, geometry, settings, resume_at);
    request.set_shard_fingerprint(members_->names().fingerprint());
    return Opened(run, OfAll([&](const Member& member) { return CallOpenRun(*member.patient(), request); }),
                  Needed::kAll);
  }

  // Members that are not there do not keep it from those that are.
  absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) override {
    v1::OpenRunRequest request = MakeJoinRun(run);
    request.set_shard_fingerprint(members_->names().fingerprint());
    auto answers =
        FanOut(members_->size(), [&](size_t member) { return CallOpenRun(*(*members_)[member].brief(), request); });
    const bool any =
        std::any_of(answers.begin(), answers.end(), [](const auto& answer) { return !IsUnreachable(answer.status()); });
    if (!any) answers = OfAll([&](const Member& member) { return CallOpenRun(*member.patient(), request); });
    return Opened(run, std::move(answers), Needed::kThoseThatAnswer);
  }

  absl::StatusOr<std::vector<RunSummary>> ListRuns() override {
    auto answers = OfAll([](const Member& member) { return CallListRuns(*Now(member)); });
    auto parts = AnswersOf<std::vector<RunSummary>>(*members_, std::move(answers), Needed::kAll);
    if (!parts.ok()) return parts.status();
    return Merged(*std::move(parts));
  }

  absl::StatusOr<ServerSummary> GetServerInfo() override {
    auto answers = OfAll([](const Member& member) { return CallServerInfo(*Now(member)); });
    const auto parts = AnswersOf<ServerSummary>(*members_, std::move(answers), Needed::kAll);
    if (!parts.ok()) return parts.status();
    return Merged(*parts);
  }

 private:
  static const std::shared_ptr<const Caller>& Now(const Member& member) {
    return member.is_gone() ? member.brief() : member.patient();
  }

  template <typename Call>
  std::vector<std::invoke_result_t<Call, const Member&>> OfAll(const Call& call) {
    return FanOut(members_->size(), [&](size_t member) {
      auto answer = call((*members_)[member]);
      (*members_)[member].OnEnd(answer.status());
      return answer;
    });
  }

  absl::StatusOr<std::shared_ptr<Run>> Opened(absl::string_view run, std::vector<absl::StatusOr<OpenedRun>> answers,
                                              Needed needed) {
    const auto opened = AnswersOf<OpenedRun>(*members_, std::move(answers), needed);
    if (!opened.ok()) return opened.status();
    OpenedRun whole = opened->front();
    whole.dropped = {};
    for (const OpenedRun& other : *opened) {
      AddTo(other.dropped, whole.dropped);
      if (other.geometry == opened->front().geometry) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("run \"", run, "\" has ", opened->front().geometry.DebugString(),
                                    " on one server, ", other.geometry.DebugString(), " on another"),
                       {.reason = Reason::kGeometryMismatch, .field = "geometry"});
    }
    return MakeShardedRun(members_, std::string(run), whole);
  }

  const std::shared_ptr<const MemberSet> members_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> ConnectSharded(const ClientOptions& options) {
  auto members = MemberSet::Open(options);
  if (!members.ok()) return members.status();
  return std::make_unique<ShardedClient>(*std::move(members));
}

}  // namespace routing_replay::client
