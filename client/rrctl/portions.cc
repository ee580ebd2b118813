#include "client/rrctl/portions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Some MB decoded, some tens of MB as JSON.
constexpr int64_t kPortionIds = int64_t{1} << 18;

absl::StatusCode CodeOf(SampleStatus status) {
  switch (status) {
    case SampleStatus::kNotFound:
      return absl::StatusCode::kNotFound;
    case SampleStatus::kLost:
      return absl::StatusCode::kDataLoss;
    case SampleStatus::kOutOfRange:
      return absl::StatusCode::kOutOfRange;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

absl::Status CheckRecord(const SampleRecord& record, const std::string& sample, int64_t revision) {
  if (record.status != SampleStatus::kOk) {
    return MakeError(CodeOf(record.status),
                     absl::StrCat(sample, ": ", SampleStatusName(record.status), ": ", record.message),
                     {.sample = sample, .committed_rows = record.committed_rows, .revision = record.revision});
  }
  if (record.revision == revision) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kAborted,
      absl::StrCat(sample, ": revision ", record.revision, " started while revision ", revision, " was read"),
      {.reason = Reason::kOldRevision, .sample = sample, .revision = record.revision});
}

}  // namespace

std::vector<int32_t> LayersOf(const Geometry& geometry, std::vector<int32_t> asked) {
  if (asked.empty()) {
    for (const LayerRouting& layer : geometry.layers()) asked.push_back(layer.layer_id);
  }
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

int64_t PortionRows(const Geometry& geometry) {
  return std::max<int64_t>(1, kPortionIds / std::max<int64_t>(1, geometry.ids_per_row()));
}

absl::StatusOr<SampleRows> ReadPortion(Run& run, const PortionRead& read, RowRange portion) {
  auto rows = run.ReadRows({.producer = read.state.producer,
                            .layers = read.layers,
                            .samples = {{.sample = read.state.sample, .rows = {portion}}}},
                           read.timeout);
  if (!rows.ok()) return rows.status();
  absl::Status status = CheckRecord((*rows)[0].record, read.state.sample, read.state.revision);
  if (!status.ok()) return status;
  return std::move((*rows)[0]);
}

absl::Status ReadPortions(Run& run, const PortionRead& read,
                          const std::function<absl::Status(RowRange portion, const SampleRows& rows)>& take) {
  for (const RowRange portion : SplitAtWindows(read.rows, PortionRows(run.geometry()))) {
    const auto rows = ReadPortion(run, read, portion);
    if (!rows.ok()) return rows.status();
    if (absl::Status status = take(portion, *rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer,
                                      std::chrono::milliseconds timeout) {
  const auto state = run.Stat(sample, producer);
  if (!state.ok()) return state.status();
  const RowRange all{0, state->committed_rows};
  return ReadPortion(run, {.state = *state, .layers = LayersOf(run.geometry()), .rows = all, .timeout = timeout}, all);
}

}  // namespace routing_replay::client
