#include "client/checkpoint/import.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/call/cancellation.h"
#include "client/checkpoint/run_portions.h"
#include "client/reader/read_checker.h"
#include "proto/wire/mutex.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Ids of one append, unless one row alone has more.
constexpr int64_t kAppendBytes = int64_t{16} << 20;
constexpr char kEngine[] = "import";

// The first row of which one list says something else than the other.
std::optional<int64_t> FirstDifference(absl::Span<const RowRange> a, absl::Span<const RowRange> b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size()) return b[i].begin;
    if (i >= b.size()) return a[i].begin;
    if (a[i].begin != b[i].begin) return std::min(a[i].begin, b[i].begin);
    if (a[i].end != b[i].end) return std::min(a[i].end, b[i].end);
  }
  return std::nullopt;
}

// The weights of `rows` in spans that cover them, neighbours differing: rows in none are of no known version.
std::vector<WeightSpan> Covering(absl::Span<const WeightSpan> weights, RowRange rows) {
  std::vector<WeightSpan> spans;
  const auto add = [&](RowRange part, int64_t version, const std::string& label) {
    part = Intersect(part, {spans.empty() ? rows.begin : spans.back().rows.end, rows.end});
    if (part.empty()) return;
    if (!spans.empty() && spans.back().version == version && spans.back().label == label) {
      spans.back().rows.end = part.end;
    } else {
      spans.push_back({part, version, label});
    }
  };
  for (const WeightSpan& span : weights) {
    add({rows.begin, span.rows.begin}, kUnknownWeightVersion, "");
    add(span.rows, span.version, span.label);
  }
  add(rows, kUnknownWeightVersion, "");
  return spans;
}

std::optional<int64_t> FirstDifference(absl::Span<const WeightSpan> a, absl::Span<const WeightSpan> b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size()) return b[i].rows.begin;
    if (i >= b.size()) return a[i].rows.begin;
    if (a[i].version != b[i].version || a[i].label != b[i].label) return a[i].rows.begin;
    if (a[i].rows.end != b[i].rows.end) return std::min(a[i].rows.end, b[i].rows.end);
  }
  return std::nullopt;
}

// The state of the CRC before `token` went through it, from the state after it (Castagnoli, reflected).
uint32_t StateBeforeToken(uint32_t state) {
  constexpr uint32_t kPolynomial = 0x82F63B78;
  for (int bit = 0; bit < 32; ++bit) {
    const bool carried = state >> 31;
    state = carried ? (state ^ kPolynomial) << 1 | 1 : state << 1;
  }
  return state;
}

}  // namespace

std::vector<uint32_t> TokensWithCheck(int64_t rows, uint32_t check) {
  std::vector<uint32_t> tokens(static_cast<size_t>(rows));
  const auto* bytes = reinterpret_cast<const uint8_t*>(tokens.data());
  const uint32_t before = TokenCheckExtend(0, {bytes, (tokens.size() - 1) * sizeof(uint32_t)});
  tokens.back() = StateBeforeToken(~check) ^ ~before;
  return tokens;
}

AppendOptions ImportAppend::Options() const {
  AppendOptions with_tokens = options;
  with_tokens.token_ids = tokens;
  return with_tokens;
}

absl::StatusOr<SampleImport> SampleImport::Begin(const std::filesystem::path& directory, const Geometry& geometry,
                                                 Producer producer, const ExportedSample& sample,
                                                 const std::optional<SampleState>& there) {
  SampleImport import(geometry, producer, sample);
  if (there) {
    if (absl::Status status = import.CheckState(*there); !status.ok()) return status;
    const bool same = there->content_id == sample.content_id && there->revision == sample.revision &&
                      sample.content_id != 0 && there->num_tokens == sample.num_tokens;
    if (same) {
      import.to_compare_.clear();
      return import;
    }
  }
  auto ids = ReadExportedIds(directory, geometry, sample);
  if (!ids.ok()) return ids.status();
  import.ids_ = *std::move(ids);
  return import;
}

absl::Status SampleImport::CheckState(const SampleState& there) {
  const int64_t rows = sample_->num_tokens - 1;
  committed_ = there.committed_rows;
  other_group_ = there.group != sample_->group;
  revision_ = there.revision;
  sealed_ = there.sealed();
  if (committed_ > rows || (sealed_ && committed_ != rows)) {
    return Conflict(
        std::min(committed_, rows), std::nullopt,
        absl::StrCat("the run has ", committed_, " rows", sealed_ ? ", sealed" : "", ", the directory ", rows));
  }
  const RowRange both{0, committed_};
  if (const auto row = FirstDifference(Clip(sample_->unrecorded, both), there.unrecorded)) {
    return Conflict(*row, std::nullopt, "it is unrecorded in one of both");
  }
  if (const auto row = FirstDifference(Covering(sample_->weights, both), Covering(there.weights, both))) {
    return Conflict(*row, std::nullopt, "it is of other weights");
  }
  to_compare_ = Subtract(both, sample_->unrecorded);
  return absl::OkStatus();
}

absl::Status SampleImport::Compare(const SamplePlanes& read) const {
  const SampleRecord& record = read.record;
  if (record.status != SampleStatus::kOk || read.rows != to_compare_) {
    const bool lost = record.status == SampleStatus::kLost;
    return MakeError(lost ? absl::StatusCode::kDataLoss : absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("sample ", sample_->sample, " cannot be compared with what the run has of it: ",
                                  SampleStatusName(record.status), ": ", record.message),
                     {.sample = sample_->sample, .committed_rows = record.committed_rows, .revision = record.revision});
  }
  const int64_t layers = geometry_->num_moe_layers(), rows = TotalRows(read.rows), cell = row_bytes() / layers;
  const uint8_t* ours = ids_.ids().data();
  int64_t slot = 0;
  for (const RowRange range : read.rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++slot) {
      for (int64_t layer = 0; layer < layers; ++layer, ours += cell) {
        if (std::memcmp(ours, read.ids.data() + (layer * rows + slot) * cell, static_cast<size_t>(cell)) == 0) continue;
        return Conflict(row, geometry_->layer(static_cast<int32_t>(layer)).layer_id, "it has other routes");
      }
    }
  }
  return absl::OkStatus();
}

std::vector<ImportAppend> SampleImport::Appends() const {
  std::vector<ImportAppend> appends;
  const int64_t rows = sample_->num_tokens - 1;
  if (sealed_) {
    if (other_group_) appends.push_back(MakeAppend({rows, rows}));
    return appends;
  }
  std::optional<uint32_t> check;
  for (const TokenCheck& known : sample_->token_checks) {
    if (known.rows == rows) check = known.crc32c;
  }
  // The row whose token tells the check goes alone, so that nothing is said of the tokens before it.
  const int64_t plain_end = check && committed_ < rows ? rows - 1 : rows;
  int64_t step = std::max<int64_t>(kAppendBytes / row_bytes(), 1);
  if (step > kDefaultBlockRows) step -= step % kDefaultBlockRows;
  for (const RowRange part : SplitAtWindows({committed_, plain_end}, step)) appends.push_back(MakeAppend(part));
  if (plain_end < rows) {
    appends.push_back(MakeAppend({plain_end, rows}));
    appends.back().tokens = TokensWithCheck(rows, *check);
  }
  if (appends.empty()) appends.push_back(MakeAppend({rows, rows}));
  appends.back().options.seal_num_tokens = sample_->num_tokens;
  return appends;
}

ImportAppend SampleImport::MakeAppend(RowRange rows) const {
  ImportAppend append;
  append.options = {.sample = sample_->sample,
                    .producer = producer_,
                    .row_start = rows.begin,
                    .unrecorded = Clip(sample_->unrecorded, rows),
                    .revision = revision_,
                    .group = sample_->group,
                    .weights = rows.empty() ? std::vector<WeightSpan>() : Covering(sample_->weights, rows),
                    .engine = kEngine};
  append.ids = IdsOf(rows);
  append.tensor = {.dtype = geometry_->max_id_bytes() == 1 ? DType::kU8 : DType::kU16,
                   .shape = {RecordedBefore(rows.end) - RecordedBefore(rows.begin), geometry_->num_moe_layers(),
                             geometry_->max_top_k()},
                   .layer_basis = LayerBasis::kMoeLayers};
  return append;
}

int64_t SampleImport::row_bytes() const {
  return int64_t{geometry_->num_moe_layers()} * geometry_->max_top_k() * geometry_->max_id_bytes();
}

int64_t SampleImport::RecordedBefore(int64_t row) const { return row - TotalRows(Clip(sample_->unrecorded, {0, row})); }

absl::Span<const uint8_t> SampleImport::IdsOf(RowRange rows) const {
  if (rows.empty()) return {};  // Also of a file that was not read.
  const int64_t begin = RecordedBefore(rows.begin), end = RecordedBefore(rows.end);
  return ids_.ids().subspan(static_cast<size_t>(begin * row_bytes()), static_cast<size_t>((end - begin) * row_bytes()));
}

absl::Status SampleImport::Conflict(int64_t row, std::optional<int32_t> layer, absl::string_view what) const {
  ErrorDetail detail{.reason = Reason::kConflictingRows, .sample = sample_->sample, .row = row, .layer = layer};
  return MakeError(
      absl::StatusCode::kAlreadyExists,
      absl::StrCat("sample ", sample_->sample, ", row ", row, layer ? absl::StrCat(", layer ", *layer) : std::string(),
                   ": the run has something else than the directory: ", what),
      detail);
}

}  // namespace routing_replay::client

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Samples whose state is asked for in one call of an import.
constexpr size_t kStatesPerCall = 1000;
constexpr std::chrono::hours kFlushTimeout(24);  // The appender has timeouts of its own.

// The first append that went wrong.
class FirstFailure {
 public:
  void On(const AppendOutcome& outcome) {
    absl::Status status = WithSample(outcome.status, outcome.sample);
    if (status.ok() && outcome.conflicting_rows > 0) {
      status = MakeError(absl::StatusCode::kAlreadyExists,
                         absl::StrCat("sample ", outcome.sample, ": ", outcome.conflicting_rows,
                                      " rows were appended by somebody else meanwhile, with other routes"),
                         {.reason = Reason::kConflictingRows, .sample = outcome.sample});
    }
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = status;
  }
  absl::Status status() const {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Importer {
 public:
  Importer(const std::filesystem::path& directory, const ExportedRun& exported, std::shared_ptr<Run> run,
           const ImportOptions& options)
      : directory_(directory), exported_(exported), run_(std::move(run)), options_(options) {
    AppenderOptions appending = options.appender;
    appending.on_outcome = [this](const AppendOutcome& outcome) { failure_.On(outcome); };
    appender_ = run_->NewAppender(std::move(appending));
    progress_.total = static_cast<int64_t>(exported_.samples.size());
  }

  absl::StatusOr<ImportOutcome> Import() {
    const absl::Span<const ExportedSample> samples = exported_.samples;
    for (size_t at = 0; at < samples.size(); at += kStatesPerCall) {
      if (absl::Status status = ImportSome(samples.subspan(at, kStatesPerCall)); !status.ok()) return status;
    }
    const absl::Status flushed = appender_->Flush(kFlushTimeout);
    if (absl::Status status = failure_.status(); !status.ok()) return status;
    if (!flushed.ok()) return flushed;
    outcome_.run = run_->name();
    outcome_.samples = progress_.samples;
    outcome_.bytes = progress_.bytes;
    return outcome_;
  }

 private:
  absl::Status ImportSome(absl::Span<const ExportedSample> samples) {
    std::vector<std::string> names;
    for (const ExportedSample& sample : samples) names.push_back(sample.sample);
    auto states = run_->StatMany(names, exported_.producer);
    if (!states.ok()) return states.status();
    std::unordered_map<std::string, SampleState> by_name;
    for (SampleState& state : *states) by_name.emplace(state.sample, std::move(state));
    for (const ExportedSample& sample : samples) {
      const auto there = by_name.find(sample.sample);
      absl::Status status = ImportOne(sample, there == by_name.end() ? std::nullopt : std::optional(there->second));
      status.Update(failure_.status());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ImportOne(const ExportedSample& sample, const std::optional<SampleState>& there) {
    if (absl::Status over = CheckCall(); !over.ok()) return over;
    const auto import = SampleImport::Begin(directory_, exported_.geometry, exported_.producer, sample, there);
    if (!import.ok()) return import.status();
    if (absl::Status status = Compare(sample.sample, *import); !status.ok()) return status;
    const std::vector<ImportAppend> appends = import->Appends();
    for (const ImportAppend& append : appends) {
      const absl::Status status = appender_->Append(append.Options(), append.tensor, append.ids);
      if (!status.ok()) return WithSample(status, sample.sample);
      progress_.bytes += static_cast<int64_t>(append.ids.size());
    }
    ++progress_.samples;
    outcome_.appended += !appends.empty();
    if (options_.on_progress) options_.on_progress(progress_);
    return absl::OkStatus();
  }

  absl::Status Compare(const std::string& sample, const SampleImport& import) {
    if (import.to_compare().empty()) return absl::OkStatus();
    const ReadRequest request{.producer = exported_.producer,
                              .samples = {{.sample = sample, .rows = import.to_compare()}}};
    auto ordinals = LayerOrdinals(run_->geometry(), request.layers);
    if (!ordinals.ok()) return ordinals.status();
    PlaneCollector planes(run_->geometry(), request, *std::move(ordinals));
    absl::Status status = run_->Read(request, planes, options_.read_timeout);
    return status.ok() ? import.Compare(planes.samples()[0]) : status;
  }

  const std::filesystem::path& directory_;
  const ExportedRun& exported_;
  const std::shared_ptr<Run> run_;
  const ImportOptions& options_;
  FirstFailure failure_;
  CheckpointProgress progress_;
  ImportOutcome outcome_;
  std::unique_ptr<Appender> appender_;  // Ends before what it tells of outcomes.
};

}  // namespace

absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options) {
  auto exported = ReadExportedRun(directory);
  if (!exported.ok()) return exported.status();
  std::erase_if(exported->samples,
                [&](const ExportedSample& sample) { return !InGroups(options.groups, sample.group); });
  auto run = client.OpenRun(options.run.empty() ? exported->run : options.run, exported->geometry, options.settings);
  if (!run.ok()) return run.status();
  return Importer(directory, *exported, *std::move(run), options).Import();
}

}  // namespace routing_replay
