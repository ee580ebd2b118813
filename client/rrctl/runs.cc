#include "client/rrctl/runs.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/channel/endpoint.h"
#include "client/shard/servers.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr char kUnreachable[] = "unreachable";

Document Describe(const SampleState& s) {
  return {{"sample", s.sample},
          {"handle", s.handle},
          {"producer", ProducerName(s.producer)},
          {"group", s.group},
          {"rows", s.committed_rows},
          {"unrecorded_rows", TotalRows(s.unrecorded)},
          {"tokens", OrNull(s.num_tokens)},
          {"sealed", s.sealed()},
          {"revision", s.revision},
          {"content_id", absl::StrCat(absl::Hex(s.content_id, absl::kZeroPad16))},
          {"stored_bytes", s.stored_bytes},
          {"idle_ms", s.idle_ms}};
}

Document VersionOrNull(int64_t version) { return version == kUnknownWeightVersion ? Document() : Document(version); }

// What `stat` shows in addition to `ls`.
Document DescribeFully(const SampleState& s) {
  Document weights = Document::array();
  for (const WeightSpan& span : s.weights) {
    weights.push_back(
        {{"rows", {span.rows.begin, span.rows.end}}, {"version", VersionOrNull(span.version)}, {"label", span.label}});
  }
  Document row = Describe(s);
  row["engine"] = s.engine;
  row["unrecorded"] = RangesToJson(s.unrecorded);
  row["weights"] = std::move(weights);
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

// Describes the server, with its counters.
absl::StatusOr<Document> DescribeServer(Client& client) {
  RR_ASSIGN_OR_RETURN(const auto info, client.GetServerInfo());
  Document server = Describe(info);
  server["counters"] = Document::object();
  for (const auto& [name, value] : info.counters) server["counters"][name] = value;
  return server;
}

// Makes an array with one entry per server of a list, including those that cannot be reached.
absl::StatusOr<Document> DescribeMembers(const Servers& servers) {
  const std::vector<Document> rows = FanOut(servers.size(), [&](size_t place) -> Document {
    const auto info = CallServerInfo(servers.at(place));
    Document row = {{"server", servers.members()->endpoints()[place]}};
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

// UNAVAILABLE naming the servers of DescribeMembers' answer that cannot be reached.
absl::Status ReachabilityOf(const Document& members) {
  std::vector<std::string> away;
  for (const Document& member : members) {
    if (member["state"] == kUnreachable) away.push_back(member["server"].get<std::string>());
  }
  if (away.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(away.size(), " of ", members.size(), " servers cannot be reached: ", absl::StrJoin(away, ", ")));
}

absl::Status ShowStatus(Session& session) {
  ClientOptions options = session.options();
  RR_ASSIGN_OR_RETURN(options.endpoint, EndpointOrEnvironment(options.endpoint));
  RR_ASSIGN_OR_RETURN(auto servers, Servers::Connect(options));
  RR_ASSIGN_OR_RETURN(servers, Servers::All(servers, options));
  if (servers->members() == nullptr) return session.Ask(DescribeServer);
  const auto members = DescribeMembers(*servers);
  const absl::Status shown = session.Show(members, Layout::kColumns);
  return shown.ok() ? ReachabilityOf(*members) : shown;
}

absl::StatusOr<Document> ListRuns(Client& client) {
  RR_ASSIGN_OR_RETURN(const auto runs, client.ListRuns());
  Document rows = Document::array();
  for (const RunSummary& run : runs) rows.push_back(Describe(run));
  return rows;
}

absl::StatusOr<Document> ListSamples(Client& client, const std::string& run, Producer producer) {
  RR_ASSIGN_OR_RETURN(const auto joined, client.JoinRun(run));
  RR_ASSIGN_OR_RETURN(const auto samples, joined->List({}, producer));
  Document rows = Document::array();
  for (const SampleState& sample : samples) rows.push_back(Describe(sample));
  return rows;
}

struct RemoveOptions {
  std::string run;
  std::vector<std::string> samples;  // Empty only if `all` is true.
  bool all = false;
};

// Releases the samples, or drops the run; returns what that freed.
absl::StatusOr<Document> Remove(Client& client, const RemoveOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto joined, client.JoinRun(options.run));
  RR_ASSIGN_OR_RETURN(const auto outcome, options.all ? joined->Drop() : joined->Release(options.samples));
  return Document{{"run", options.run}, {"samples", outcome.samples}, {"freed_bytes", outcome.bytes}};
}

Document Describe(const VerifyOutcome& outcome, const char* key, const std::string& name) {
  Document damaged = Document::array();
  for (const DamagedSample& sample : outcome.damaged) {
    damaged.push_back({{"sample", sample.sample},
                       {"row", OrNull(sample.row)},
                       {"layer", OrNull(sample.layer)},
                       {"what", sample.what}});
  }
  return Document{{key, name},
                  {"samples", outcome.samples},
                  {"rows", outcome.rows},
                  {"read_bytes", outcome.bytes},
                  {"damaged", std::move(damaged)}};
}

// "/x", "./x" and "../x": on the command line these are directories, not runs.
bool IsDirectoryName(absl::string_view name) { return absl::StartsWith(name, "/") || absl::StartsWith(name, "."); }

// As Verify, for `options.directory`, without a server.
absl::StatusOr<Document> VerifyDirectory(const TransferOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto outcome, VerifyExportedRun(options.directory, {.groups = options.groups}));
  return Describe(outcome, "directory", options.directory);
}

}  // namespace

absl::StatusOr<Document> DescribeRun(Client& client, const std::string& run) {
  RR_ASSIGN_OR_RETURN(const auto runs, client.ListRuns());
  for (const RunSummary& summary : runs) {
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

absl::StatusOr<Document> DescribeSamples(Client& client, const std::string& run,
                                         const std::vector<std::string>& samples, Producer producer) {
  RR_ASSIGN_OR_RETURN(const auto joined, client.JoinRun(run));
  Document rows = Document::array();
  for (const std::string& sample : samples) {
    RR_ASSIGN_OR_RETURN(const auto state, joined->Stat(sample, producer));
    rows.push_back(DescribeFully(state));
  }
  return rows;
}

void AddStatus(Application& application) {
  application.Add("status", "the server: version, store, memory and counters; of several servers one line each",
                  ShowStatus);
}

void AddListAndStat(Application& application) {
  struct Options {
    std::string run;
    std::vector<std::string> samples;
    Producer producer = Producer::kRollout;
  };
  const auto listed = std::make_shared<Options>();
  CLI::App* ls = application.Add("ls", "all runs, or the samples of a run", [listed](Session& session) {
    return session.Ask(
        [&](Client& client) {
          return listed->run.empty() ? ListRuns(client) : ListSamples(client, listed->run, listed->producer);
        },
        Layout::kColumns);
  });
  ls->add_option("RUN", listed->run, "name of the run; without it, the runs are listed");
  AddProducer(ls, listed->producer);

  const auto asked = std::make_shared<Options>();
  CLI::App* stat = application.Add("stat", "all details of a run, or of samples", [asked](Session& session) {
    return session.Ask([&](Client& client) {
      return asked->samples.empty() ? DescribeRun(client, asked->run)
                                    : DescribeSamples(client, asked->run, asked->samples, asked->producer);
    });
  });
  AddRun(stat, asked->run);
  stat->add_option("SAMPLE", asked->samples, "names of samples; without any, the run is described");
  AddProducer(stat, asked->producer);
}

void AddRemove(Application& application) {
  const auto options = std::make_shared<RemoveOptions>();
  CLI::App* rm = application.Add(
      "rm",
      "release samples, or drop a whole run with --all\n"
      "Samples that do not exist are no error: the answer says how many were removed.",
      [options](Session& session) { return session.Ask([&](Client& client) { return Remove(client, *options); }); });
  AddRun(rm, options->run);
  rm->add_option("SAMPLE", options->samples, "names of samples");
  rm->add_flag("--all", options->all, "drop the run with all its samples");
  rm->parse_complete_callback([options] {
    if (options->samples.empty() != options->all) throw CLI::ValidationError("rm", "name samples, or give --all");
  });
}

absl::StatusOr<Document> ExportToDirectory(Client& client, const TransferOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  RR_ASSIGN_OR_RETURN(
      const auto outcome,
      ExportRun(*run, options.directory,
                {.groups = options.groups, .producer = options.producer, .previous = options.previous}));
  return Document{{"run", options.run},         {"directory", options.directory}, {"samples", outcome.samples},
                  {"written", outcome.written}, {"unsealed", outcome.unsealed},   {"written_bytes", outcome.bytes}};
}

absl::StatusOr<Document> ImportFromDirectory(Client& client, const TransferOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto outcome,
                      ImportRun(client, options.directory, {.groups = options.groups, .run = options.run}));
  return Document{{"run", outcome.run},
                  {"directory", options.directory},
                  {"samples", outcome.samples},
                  {"appended", outcome.appended},
                  {"appended_bytes", outcome.bytes}};
}

absl::StatusOr<Document> Verify(Client& client, const TransferOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  RR_ASSIGN_OR_RETURN(const auto outcome, VerifyRun(*run, {.groups = options.groups, .producer = options.producer}));
  return Describe(outcome, "run", options.run);
}

void AddTransfers(Application& application) {
  const auto out = std::make_shared<TransferOptions>();
  CLI::App* exported = application.Add(
      "export",
      "write a run's sealed samples to a new directory\n"
      "The directory is an exported run, which a trainer can also replay from. It appears whole, or "
      "not at all.",
      [out](Session& session) { return session.Ask([&](Client& client) { return ExportToDirectory(client, *out); }); });
  AddRun(exported, out->run);
  exported->add_option("DIR", out->directory, "a new directory, or an empty one")->required();
  AddGroups(exported, out->groups);
  exported->add_option(
      "--previous", out->previous,
      "an earlier export of the run: samples that have not changed since, or that the run has released since, "
      "become hard links to its files");
  AddProducer(exported, out->producer);

  const auto in = std::make_shared<TransferOptions>();
  CLI::App* imported = application.Add(
      "import",
      "append the samples in a directory to a run, except those that the run already has\n"
      "If it is interrupted, call it again to continue.",
      [in](Session& session) { return session.Ask([&](Client& client) { return ImportFromDirectory(client, *in); }); });
  imported->add_option("DIR", in->directory, "an exported run")->required();
  imported->add_option(
      "RUN", in->run,
      "name of the run, which is created if it does not exist; by default the name under which it was exported");
  AddGroups(imported, in->groups);

  const auto read = std::make_shared<TransferOptions>();
  CLI::App* verify =
      application.Add("verify",
                      "read every row of a run, or of an exported run, and compare every checksum\n"
                      "A directory, written /DIR, ./DIR or ../DIR, needs no server.",
                      [read](Session& session) {
                        RR_ASSIGN_OR_RETURN(const auto verified,
                                            read->directory.empty()
                                                ? session.Answer([&](Client& client) { return Verify(client, *read); })
                                                : VerifyDirectory(*read));
                        session.output().PrintWithTable(verified, "damaged");
                        if (!verified["damaged"].empty()) session.AnswerNo();
                        return session.output().Flush();
                      });
  verify
      ->add_option_function<std::string>(
          "RUN", [read](const std::string& name) { (IsDirectoryName(name) ? read->directory : read->run) = name; },
          "name of the run, or an exported run: /DIR, ./DIR or ../DIR")
      ->required();
  AddGroups(verify, read->groups);
  AddProducer(verify, read->producer);
}

}  // namespace routing_replay::client
