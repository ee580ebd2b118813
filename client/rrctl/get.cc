#include "client/rrctl/get.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

// Ids of one portion: some MB decoded, some tens of MB as JSON.
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
      absl::StrCat(sample, ": revision ", record.revision, " began while revision ", revision, " was read"),
      {.reason = Reason::kOldRevision, .sample = sample, .revision = record.revision});
}

// `portion` of `sample`, which has its recorded rows and the asked layers.
Document ToDocument(const Geometry& geometry, const std::vector<int32_t>& layers, RowRange portion,
                    const SampleRows& sample) {
  Document rows = Document::array();
  int64_t slot = 0;
  auto recorded = sample.rows.begin();
  for (int64_t row = portion.begin; row < portion.end; ++row) {
    while (recorded != sample.rows.end() && recorded->end <= row) ++recorded;
    const bool has_ids = recorded != sample.rows.end() && recorded->contains(row);
    for (size_t i = 0; i < layers.size(); ++i) {
      Document experts;
      if (has_ids) {
        const int32_t k = geometry.layer(*geometry.FindOrdinal(layers[i])).top_k;
        const uint16_t* ids = sample.layers[i].data() + slot * k;
        experts = std::vector<uint16_t>(ids, ids + k);
      }
      rows.push_back({{"row", row}, {"layer", layers[i]}, {"experts", std::move(experts)}});
    }
    slot += has_ids;
  }
  return rows;
}

// What is asked in the order of a read, or every MoE layer.
std::vector<int32_t> LayersOf(const Geometry& geometry, std::vector<int32_t> asked) {
  if (asked.empty()) {
    for (const LayerRouting& layer : geometry.layers()) asked.push_back(layer.layer_id);
  }
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

}  // namespace

absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show) {
  const auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  const auto state = (*run)->Stat(options.sample, options.producer);
  if (!state.ok()) return state.status();
  const Geometry& geometry = (*run)->geometry();
  const std::vector<int32_t> layers = LayersOf(geometry, options.layers);
  const int64_t portion_rows = std::max<int64_t>(1, kPortionIds / geometry.ids_per_row());
  const RowRange wanted = options.rows.value_or(RowRange{0, state->committed_rows});
  for (const RowRange portion : SplitAtWindows(wanted, portion_rows)) {
    const auto read = (*run)->ReadRows(
        {.producer = options.producer, .layers = layers, .samples = {{.sample = options.sample, .rows = {portion}}}},
        options.timeout);
    if (!read.ok()) return read.status();
    const SampleRows& sample = (*read)[0];
    if (absl::Status status = CheckRecord(sample.record, options.sample, state->revision); !status.ok()) return status;
    if (absl::Status status = show(ToDocument(geometry, layers, portion, sample)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer,
                                      std::chrono::milliseconds timeout) {
  const auto state = run.Stat(sample, producer);
  if (!state.ok()) return state.status();
  auto read = run.ReadRows({.producer = producer,
                            .layers = LayersOf(run.geometry(), {}),
                            .samples = {{.sample = sample, .rows = {{0, state->committed_rows}}}}},
                           timeout);
  if (!read.ok()) return read.status();
  if (absl::Status status = CheckRecord((*read)[0].record, sample, state->revision); !status.ok()) return status;
  return std::move((*read)[0]);
}

absl::StatusOr<RowRange> ParseRows(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  RowRange range;
  if (parts.size() == 1 && absl::SimpleAtoi(parts[0], &range.begin) && range.begin >= 0 && range.begin < kMaxRows) {
    return RowRange::OfSize(range.begin, 1);
  }
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &range.begin) && absl::SimpleAtoi(parts[1], &range.end) &&
      range.begin >= 0 && range.begin < range.end && range.end <= kMaxRows) {
    return range;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ROW or BEGIN:END"));
}

}  // namespace routing_replay
