#include "client/rrctl/transfer.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

OnCheckpointProgress Forward(const ShowProgress& show) {
  return [&show](const CheckpointProgress& progress) {
    show({.done = progress.samples, .total = progress.total, .bytes = progress.bytes});
  };
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

// "/x", "./x", "../x", "." and "..": on the command line these are directories, not runs.
bool IsDirectoryName(absl::string_view name) {
  return name == "." || name == ".." || absl::StartsWith(name, "/") || absl::StartsWith(name, "./") ||
         absl::StartsWith(name, "../");
}

using Transfer = absl::StatusOr<Document> (*)(Client&, const TransferOptions&, const ShowProgress&);

absl::StatusOr<Document> RunTransfer(Session& session, const TransferOptions& options, Transfer transfer) {
  return session.AskLong(
      [&](Client& client, const ShowProgress& progress) { return transfer(client, options, progress); });
}

absl::StatusOr<Document> VerifyHere(const TransferOptions& options) {
  ProgressLine line;
  return VerifyDirectory(options, [&line](const Progress& progress) { line.Show(progress); });
}

}  // namespace

absl::StatusOr<Document> ExportToDirectory(Client& client, const TransferOptions& options,
                                           const ShowProgress& progress) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  RR_ASSIGN_OR_RETURN(const auto outcome, ExportRun(*run, options.directory,
                                                    {.groups = options.groups,
                                                     .producer = options.producer,
                                                     .previous = options.previous,
                                                     .on_progress = Forward(progress)}));
  return Document{{"run", options.run},         {"directory", options.directory}, {"samples", outcome.samples},
                  {"written", outcome.written}, {"unsealed", outcome.unsealed},   {"written_bytes", outcome.bytes}};
}

absl::StatusOr<Document> ImportFromDirectory(Client& client, const TransferOptions& options,
                                             const ShowProgress& progress) {
  RR_ASSIGN_OR_RETURN(const auto outcome,
                      ImportRun(client, options.directory,
                                {.groups = options.groups, .run = options.run, .on_progress = Forward(progress)}));
  return Document{{"run", outcome.run},
                  {"directory", options.directory},
                  {"samples", outcome.samples},
                  {"appended", outcome.appended},
                  {"appended_bytes", outcome.bytes}};
}

absl::StatusOr<Document> Verify(Client& client, const TransferOptions& options, const ShowProgress& progress) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  const auto outcome =
      VerifyRun(*run, {.groups = options.groups, .producer = options.producer, .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Describe(*outcome, "run", options.run);
}

absl::StatusOr<Document> VerifyDirectory(const TransferOptions& options, const ShowProgress& progress) {
  const auto outcome =
      VerifyExportedRun(options.directory, {.groups = options.groups, .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Describe(*outcome, "directory", options.directory);
}

absl::Status DamageOf(const Document& verified) {
  const Document& damaged = verified["damaged"];
  if (damaged.empty()) return absl::OkStatus();
  ErrorDetail detail{.reason = Reason::kChecksum, .sample = damaged[0]["sample"].get<std::string>()};
  if (!damaged[0]["row"].is_null()) detail.row = damaged[0]["row"].get<int64_t>();
  if (!damaged[0]["layer"].is_null()) detail.layer = damaged[0]["layer"].get<int32_t>();
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat(damaged.size(), " of ", verified["samples"].get<int64_t>(), " samples ",
                                damaged.size() == 1 ? "is" : "are", " damaged"),
                   detail);
}

void AddTransfers(Application& application) {
  const auto out = std::make_shared<TransferOptions>();
  CLI::App* exported =
      application.Add("export",
                      "write a run's sealed samples to a new directory\n"
                      "The directory is an exported run, which a trainer can also replay from. It appears whole, or "
                      "not at all.",
                      [out](Session& session) { return session.Show(RunTransfer(session, *out, ExportToDirectory)); });
  AddRun(exported, out->run);
  exported->add_option("DIR", out->directory, "a new directory, or an empty one")->required();
  AddGroups(exported, out->groups);
  exported->add_option(
      "--previous", out->previous,
      "an earlier export of the run: equal samples become hard links to its files, and samples that the run "
      "released since are taken over");
  AddProducer(exported, out->producer);

  const auto in = std::make_shared<TransferOptions>();
  CLI::App* imported =
      application.Add("import",
                      "append the samples in a directory to a run, except those that the run already has\n"
                      "If it is interrupted, call it again to continue.",
                      [in](Session& session) { return session.Show(RunTransfer(session, *in, ImportFromDirectory)); });
  imported->add_option("DIR", in->directory, "an exported run")->required();
  imported->add_option(
      "RUN", in->run,
      "name of the run, which is created if it does not exist; by default the name under which it was exported");
  AddGroups(imported, in->groups);

  const auto read = std::make_shared<TransferOptions>();
  CLI::App* verify = application.Add(
      "verify",
      "read every row of a run, or of an exported run, and compare every checksum\n"
      "A directory, written /DIR, ./DIR or ../DIR, needs no server.",
      [read](Session& session) {
        RR_ASSIGN_OR_RETURN(const auto verified,
                            read->directory.empty() ? RunTransfer(session, *read, Verify) : VerifyHere(*read));
        session.output().PrintWithTable(verified, "damaged", /*counted=*/true);
        const absl::Status taken = session.output().Flush();
        return taken.ok() ? DamageOf(verified) : taken;
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
