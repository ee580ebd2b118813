#include "client/rrctl/transfer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

OnCheckpointProgress Forward(const ShowProgress& show) {
  return [&show](const CheckpointProgress& progress) {
    show({.done = progress.samples, .total = progress.total, .bytes = progress.bytes});
  };
}

template <typename T>
Document OrNull(const std::optional<T>& value) {
  return value ? Document(*value) : Document();
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

}  // namespace

absl::StatusOr<Document> ExportToDirectory(Client& client, const TransferOptions& options,
                                           const ShowProgress& progress) {
  const auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  const auto outcome = ExportRun(**run, options.directory,
                                 {.groups = options.groups,
                                  .producer = options.producer,
                                  .drop_missing = options.drop_missing,
                                  .release_awaiting = options.checkpoint,
                                  .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Document{{"run", options.run},
                  {"directory", options.directory},
                  {"samples", outcome->samples},
                  {"written", outcome->written},
                  {"dropped", outcome->dropped},
                  {"unsealed", outcome->unsealed},
                  {"released", outcome->released},
                  {"written_bytes", outcome->bytes}};
}

absl::StatusOr<Document> ImportFromDirectory(Client& client, const TransferOptions& options,
                                             const ShowProgress& progress) {
  const auto outcome = ImportRun(client, options.directory,
                                 {.groups = options.groups, .run = options.run, .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Document{{"run", outcome->run},
                  {"directory", options.directory},
                  {"samples", outcome->samples},
                  {"appended", outcome->appended},
                  {"appended_bytes", outcome->bytes}};
}

absl::StatusOr<Document> Verify(Client& client, const TransferOptions& options, const ShowProgress& progress) {
  const auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  const auto outcome =
      VerifyRun(**run, {.groups = options.groups, .producer = options.producer, .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Describe(*outcome, "run", options.run);
}

absl::StatusOr<Document> VerifyDirectory(const TransferOptions& options, const ShowProgress& progress) {
  const auto outcome =
      VerifyExportedRun(options.directory, {.groups = options.groups, .on_progress = Forward(progress)});
  if (!outcome.ok()) return outcome.status();
  return Describe(*outcome, "directory", options.directory);
}

bool IsDirectoryName(absl::string_view name) {
  return name == "." || name == ".." || absl::StartsWith(name, "/") || absl::StartsWith(name, "./") ||
         absl::StartsWith(name, "../");
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

}  // namespace routing_replay::client
