#include "client/rrctl/inspect.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/shard/fan_out.h"
#include "client/shard/members.h"
#include "proto/json/geometry_json.h"
#include "proto/json/status_json.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr char kUnreachable[] = "unreachable";

Document Describe(const SampleState& s) {
  Document row = {{"sample", s.sample},
                  {"handle", s.handle},
                  {"producer", ProducerName(s.producer)},
                  {"group", s.group},
                  {"rows", s.committed_rows},
                  {"unrecorded_rows", TotalRows(s.unrecorded)},
                  {"tokens", nullptr},
                  {"sealed", s.sealed()},
                  {"awaits_checkpoint", s.awaits_checkpoint},
                  {"revision", s.revision},
                  {"content_id", absl::StrCat(absl::Hex(s.content_id, absl::kZeroPad16))},
                  {"stored_bytes", s.stored_bytes},
                  {"idle_ms", s.idle_ms}};
  if (s.num_tokens) row["tokens"] = *s.num_tokens;
  return row;
}

// What `stat` says beyond `ls`.
Document DescribeFully(const SampleState& s) {
  Document row = Describe(s);
  row["engine"] = s.engine;
  row["unrecorded"] = RangesToJson(s.unrecorded);
  row["weights"] = Document::array();
  for (const WeightSpan& span : s.weights) {
    Document weights = {{"rows", {span.rows.begin, span.rows.end}}, {"version", nullptr}, {"label", span.label}};
    if (span.version != kUnknownWeightVersion) weights["version"] = span.version;
    row["weights"].push_back(std::move(weights));
  }
  row["appends"] = 0;
  row["provenance"] = Document::array();
  int64_t appends = 0;
  for (const Provenance& from : s.provenance) {
    Document origin = {{"rows", {from.rows.begin, from.rows.end}},
                       {"engine", from.engine},
                       {"version", nullptr},
                       {"label", from.weight_label},
                       {"appends", from.appends}};
    if (from.weight_version != kUnknownWeightVersion) origin["version"] = from.weight_version;
    row["provenance"].push_back(std::move(origin));
    appends += from.appends;
  }
  row["appends"] = appends;
  return row;
}

Document Describe(const ServerSummary& info) {
  return {{"version", info.version},
          {"store", info.store},
          {"state", info.draining ? "draining" : "serving"},
          {"uptime_ms", info.uptime.count()},
          {"budget_bytes", info.budget_bytes},
          {"stored_bytes", info.stored_bytes},
          {"reserved_bytes", info.reserved_bytes},
          {"spill_budget_bytes", info.spill_budget_bytes},
          {"spilled_bytes", info.spilled_bytes},
          {"runs", info.runs},
          {"samples", info.samples}};
}

Document Describe(const RunSummary& run) {
  return {{"run", run.run},
          {"geometry", run.geometry.DebugString()},
          {"samples", run.samples},
          {"sealed_samples", run.sealed_samples},
          {"rows", run.committed_rows},
          {"stored_bytes", run.stored_bytes}};
}

}  // namespace

absl::StatusOr<Document> DescribeServer(Client& client) {
  const auto info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  Document server = Describe(*info);
  server["counters"] = Document::object();
  for (const auto& [name, value] : info->counters) server["counters"][name] = value;
  return server;
}

absl::StatusOr<Document> DescribeMembers(const ClientOptions& options) {
  const auto members = ShardMembers::Parse(options.endpoint);
  if (!members.ok()) return members.status();
  const std::vector<Document> rows = FanOut(members->size(), [&](size_t member) -> Document {
    const std::string& endpoint = members->endpoints()[member];
    ClientOptions alone = options;
    alone.endpoint = endpoint;
    const auto client = Client::Connect(alone);
    const auto info = client.ok() ? (*client)->GetServerInfo() : client.status();
    Document row = {{"server", endpoint}};
    row.update(Describe(info.ok() ? *info : ServerSummary()));
    if (info.ok()) return row;
    for (auto& [key, value] : row.items()) {
      if (key != "server") value = nullptr;
    }
    row["state"] = kUnreachable;
    return row;
  });
  return Document(rows);
}

absl::Status ReachabilityOf(const Document& members) {
  std::vector<std::string> away;
  for (const Document& member : members) {
    if (member["state"] == kUnreachable) away.push_back(member["server"].get<std::string>());
  }
  if (away.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(away.size(), " of ", members.size(), " servers cannot be reached: ", absl::StrJoin(away, ", ")));
}

absl::StatusOr<Document> ListRuns(Client& client) {
  const auto runs = client.ListRuns();
  if (!runs.ok()) return runs.status();
  Document rows = Document::array();
  for (const RunSummary& run : *runs) rows.push_back(Describe(run));
  return rows;
}

absl::StatusOr<Document> DescribeRun(Client& client, const std::string& run) {
  const auto runs = client.ListRuns();
  if (!runs.ok()) return runs.status();
  for (const RunSummary& summary : *runs) {
    if (summary.run != run) continue;
    const RunSettings& settings = summary.settings;
    Document object = Describe(summary);
    object["geometry"] = GeometryToJson(summary.geometry);
    object["ttl_ms"] = settings.ttl.count();
    object["strict"] = settings.strict;
    object["block_rows"] = settings.block_rows;
    object["codec"] = CodecName(settings.codec.value_or(summary.geometry.default_codec()));
    if (settings.durability) object["durability"] = DurabilityName(*settings.durability);
    if (settings.shard_fingerprint != 0) {
      object["shard_fingerprint"] = absl::StrCat(absl::Hex(settings.shard_fingerprint, absl::kZeroPad16));
    }
    return object;
  }
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no run \"", run, "\""),
                   {.reason = Reason::kNoRun, .field = "run"});
}

absl::StatusOr<Document> ListSamples(Client& client, const std::string& run, Producer producer) {
  const auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  const auto samples = (*joined)->List({}, producer);
  if (!samples.ok()) return samples.status();
  Document rows = Document::array();
  for (const SampleState& sample : *samples) rows.push_back(Describe(sample));
  return rows;
}

absl::StatusOr<Document> DescribeSamples(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples, Producer producer) {
  const auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  Document rows = Document::array();
  for (const std::string& sample : samples) {
    const auto state = (*joined)->Stat(sample, producer);
    if (!state.ok()) return state.status();
    rows.push_back(DescribeFully(*state));
  }
  return rows;
}

absl::StatusOr<std::pair<int64_t, int64_t>> ParseGroups(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits(':', 1));
  int64_t begin = 0, end = 0;
  bool good = absl::SimpleAtoi(ends[0], &begin) && begin < std::numeric_limits<int64_t>::max();
  if (ends.size() == 2) {
    good = good && absl::SimpleAtoi(ends[1], &end) && begin < end;
  } else {
    end = good ? begin + 1 : 0;
  }
  if (!good) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is neither a group nor BEGIN:END"));
  return std::pair(begin, end);
}

absl::StatusOr<Document> Remove(Client& client, const std::string& run, const std::vector<std::string>& samples) {
  const auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  const auto outcome = samples.empty() ? (*joined)->Drop() : (*joined)->Release(samples);
  if (!outcome.ok()) return outcome.status();
  return Document{{"run", run}, {"samples", outcome->samples}, {"freed_bytes", outcome->bytes}};
}

absl::StatusOr<Document> DescribeRemoval(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples) {
  const auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  Document all = {{"run", run}, {"samples", 0}, {"stored_bytes", 0}, {"removed", false}};
  for (const Producer producer : {Producer::kRollout, Producer::kTrainer}) {
    const auto states = samples.empty() ? (*joined)->List({}, producer) : (*joined)->StatMany(samples, producer);
    if (!states.ok()) return states.status();
    for (const SampleState& state : *states) {
      all["samples"] = all["samples"].get<int64_t>() + 1;
      all["stored_bytes"] = all["stored_bytes"].get<int64_t>() + state.stored_bytes;
    }
  }
  return all;
}

}  // namespace routing_replay::client
