// Exports and imports.
#include <filesystem>
#include <utility>

#include "client/capi/objects.h"
#include "client/checkpoint/export_session.h"
#include "client/checkpoint/import_session.h"
#include "proto/json/geometry_json.h"
#include "proto/json/json_object.h"
#include "proto/json/status_json.h"
#include "proto/json/wire_json.h"
#include "routing_replay/wire/error_detail.h"

using namespace routing_replay;          // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;    // NOLINT(build/namespaces)
using namespace routing_replay::client;  // NOLINT(build/namespaces)

struct rr_export final {
  std::unique_ptr<ExportSession> session;
};

struct rr_import final {
  std::filesystem::path directory;
  ExportedRun exported;
  std::optional<SampleImport> sample;  // The one that was begun …
  std::deque<ImportAppend> appends;    // … and what is left of it.
};

namespace {

using nlohmann::json;

struct ExportTo {
  std::string directory;
  ExportSession::Scope scope;
};

absl::StatusOr<std::optional<std::pair<int64_t, int64_t>>> ReadGroups(JsonObject& object) {
  std::optional<std::pair<int64_t, int64_t>> none;
  if (object.Find("groups") == nullptr) return none;
  std::vector<int64_t> groups;
  object.Read("groups", groups);
  if (groups.size() != 2) return Invalid(object.PathOf("groups"), "is not [begin, end]");
  return std::optional(std::pair(groups[0], groups[1]));
}

absl::StatusOr<ExportTo> ExportFrom(absl::string_view text) {
  const auto value = ParseJson(text, "export");
  if (!value.ok()) return value.status();
  ExportTo to;
  JsonObject object(*value, "export");
  object.Require("directory");
  object.Read("directory", to.directory);
  auto groups = ReadGroups(object);
  if (!groups.ok()) return groups.status();
  to.scope.groups = *groups;
  object.Read("drop_missing", to.scope.drop_missing);
  object.Read("release_awaiting", to.scope.release_awaiting);
  ReadProducer(object, to.scope.producer);
  if (absl::Status status = object.status(); !status.ok()) return status;
  return to;
}

// The samples of a read that has ended well, once.
absl::StatusOr<absl::Span<SamplePlanes>> TakeSamples(rr_reader* reader) {
  if (absl::Status status = CheckEnded(reader, true); !status.ok()) return status;
  if (!reader->taken.empty()) return absl::FailedPreconditionError("the ids of the read were taken already");
  std::vector<SamplePlanes>& samples = reader->collector->samples();
  for (size_t i = 0; i < samples.size(); ++i) reader->taken.insert(i);
  return absl::MakeSpan(samples);
}

}  // namespace

rr_error* rr_export_new(const rr_run* run, const char* options, size_t size, rr_export** made) {
  return Guard([&]() -> absl::Status {
    const auto to = ExportFrom(Text(options, size));
    if (!to.ok()) return to.status();
    auto session = ExportSession::Open(to->directory, run->info.name, run->info.geometry, to->scope);
    if (!session.ok()) return session.status();
    *made = new rr_export{*std::move(session)};
    return absl::OkStatus();
  });
}

void rr_export_free(rr_export* export_) { delete export_; }

rr_error* rr_export_on_list(rr_export* export_, const char* states, size_t size, uint64_t life) {
  return Guard([&] {
    const auto list = StatesFrom(Text(states, size));
    return list.ok() ? export_->session->OnList(*list, life) : list.status();
  });
}

rr_error* rr_export_next(rr_export* export_, rr_bytes** out) {
  return Guard([&] {
    const std::vector<std::string>& samples = export_->session->Next();
    const CheckpointProgress& progress = export_->session->progress();
    return Give(
        json{{"samples", samples},
             {"progress", {{"samples", progress.samples}, {"total", progress.total}, {"bytes", progress.bytes}}}},
        out);
  });
}

rr_error* rr_export_on_rows(rr_export* export_, const char* states, size_t size, rr_reader* reader) {
  return Guard([&]() -> absl::Status {
    const auto list = StatesFrom(Text(states, size));
    if (!list.ok()) return list.status();
    const auto samples = TakeSamples(reader);
    if (!samples.ok()) return samples.status();
    return export_->session->OnRows(*list, *samples);
  });
}

rr_error* rr_export_finish(rr_export* export_, rr_bytes** out) {
  return Guard([&]() -> absl::Status {
    ExportSession& session = *export_->session;
    const auto outcome = session.Finish();
    if (!outcome.ok()) return outcome.status();
    return Give(json{{"samples", outcome->samples},
                     {"written", outcome->written},
                     {"dropped", outcome->dropped},
                     {"unsealed", outcome->unsealed},
                     {"bytes", outcome->bytes},
                     {"awaited", session.awaited().samples},
                     {"awaited_content_ids", session.awaited().content_ids}},
                out);
  });
}

rr_error* rr_export_unread(const rr_export* export_) {
  return Guard([&] { return export_->session->unread(); });
}

rr_error* rr_import_new(const char* options, size_t size, rr_import** made) {
  return Guard([&]() -> absl::Status {
    const auto value = ParseJson(Text(options, size), "import");
    if (!value.ok()) return value.status();
    std::string directory;
    JsonObject object(*value, "import");
    object.Require("directory");
    object.Read("directory", directory);
    const auto groups = ReadGroups(object);
    if (!groups.ok()) return groups.status();
    if (absl::Status status = object.status(); !status.ok()) return status;
    auto exported = ReadExportedRun(directory);
    if (!exported.ok()) return exported.status();
    KeepGroups(*groups, *exported);
    *made = new rr_import{directory, *std::move(exported), std::nullopt, {}};
    return absl::OkStatus();
  });
}

void rr_import_free(rr_import* import) { delete import; }

rr_error* rr_import_contents(const rr_import* import, rr_bytes** out) {
  return Guard([&] {
    json samples = json::array();
    for (const ExportedSample& sample : import->exported.samples) samples.push_back(sample.sample);
    return Give(json{{"run", import->exported.run},
                     {"producer", ProducerName(import->exported.producer)},
                     {"geometry", GeometryToJson(import->exported.geometry)},
                     {"samples", std::move(samples)}},
                out);
  });
}

rr_error* rr_import_begin(rr_import* import, size_t index, const char* states, size_t size, rr_bytes** compare) {
  return Guard([&]() -> absl::Status {
    if (index >= import->exported.samples.size()) return absl::OutOfRangeError("index: there is no such sample");
    auto list = StatesFrom(Text(states, size));
    if (!list.ok()) return list.status();
    auto sample =
        SampleImport::Begin(import->directory, import->exported.geometry, import->exported.producer,
                            import->exported.samples[index], list->empty() ? std::nullopt : std::optional((*list)[0]));
    if (!sample.ok()) return sample.status();
    import->sample = *std::move(sample);
    std::vector<ImportAppend> appends = import->sample->Appends();
    import->appends.assign(std::make_move_iterator(appends.begin()), std::make_move_iterator(appends.end()));
    return Give(RangesToJson(import->sample->to_compare()), compare);
  });
}

rr_error* rr_import_compare(rr_import* import, rr_reader* reader) {
  return Guard([&]() -> absl::Status {
    if (!import->sample) return absl::FailedPreconditionError("no sample was begun");
    const auto samples = TakeSamples(reader);
    if (!samples.ok()) return samples.status();
    if (samples->size() != 1) return absl::InvalidArgumentError("reader: is not one of one sample");
    return import->sample->Compare((*samples)[0]);
  });
}

rr_error* rr_import_take_plan(rr_import* import, const rr_run* run, rr_plan** plan, int64_t* bytes) {
  return Guard([&]() -> absl::Status {
    if (import->appends.empty()) {
      *plan = nullptr;
      *bytes = 0;
      return absl::OkStatus();
    }
    const ImportAppend& append = import->appends.front();
    auto made = PlanRows(append.Options(), append.tensor, append.ids, run->info.geometry, run->info.blocks());
    if (!made.ok()) return WithSample(made.status(), append.options.sample);
    *bytes = static_cast<int64_t>(append.ids.size());
    *plan = new rr_plan{*std::move(made)};
    import->appends.pop_front();
    return absl::OkStatus();
  });
}
