#include "client/checkpoint/import.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/call/cancellation.h"
#include "client/checkpoint/run_portions.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Limit for the bytes of ids in one append, unless a single row is larger.
constexpr int64_t kAppendBytes = int64_t{16} << 20;
constexpr char kEngine[] = "import";

// A token changes the state of the CRC (Castagnoli, reflected) in 32 steps, one for each bit. Undoes them: takes the
// state after the token, and returns the state before it, XORed with the token.
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

std::vector<ImportAppend> ImportAppends(const Geometry& geometry, Producer producer, const ExportedSample& sample,
                                        absl::Span<const uint8_t> ids, RowRange rows, int64_t revision) {
  const int64_t layers = geometry.num_moe_layers(), top_k = geometry.max_top_k();
  const int64_t row_bytes = layers * top_k * geometry.max_id_bytes();
  const auto recorded = [&](RowRange part) { return part.size() - TotalRows(Clip(sample.unrecorded, part)); };
  std::vector<ImportAppend> appends;
  const auto add = [&](RowRange part) {
    ImportAppend& append = appends.emplace_back();
    append.options = {.sample = sample.sample,
                      .producer = producer,
                      .row_start = part.begin,
                      .unrecorded = Clip(sample.unrecorded, part),
                      .revision = revision,
                      .group = sample.group,
                      .weights = ClipWeights(sample.weights, part),
                      .engine = kEngine};
    append.ids = ids.subspan(recorded({0, part.begin}) * row_bytes, recorded(part) * row_bytes);
    append.tensor = {.dtype = geometry.max_id_bytes() == 1 ? DType::kU8 : DType::kU16,
                     .shape = {recorded(part), layers, top_k},
                     .layer_basis = LayerBasis::kMoeLayers};
  };
  const int64_t all = sample.num_tokens - 1;
  std::optional<uint32_t> check;
  for (const TokenCheck& known : sample.token_checks) {
    if (known.rows == all) check = known.crc32c;
  }
  // Append the last row separately, because only its append has tokens (to set the token check).
  const int64_t plain_end = check && !rows.empty() && rows.end == all ? all - 1 : rows.end;
  int64_t step = std::max<int64_t>(kAppendBytes / row_bytes, 1);
  if (step > kDefaultBlockRows) step -= step % kDefaultBlockRows;
  for (const RowRange part : SplitAtWindows({rows.begin, plain_end}, step)) add(part);
  if (plain_end < rows.end) {
    add({plain_end, rows.end});
    appends.back().tokens = TokensWithCheck(all, *check);
    appends.back().options.token_ids = appends.back().tokens;
  }
  if (appends.empty()) add(rows);
  return appends;
}

}  // namespace routing_replay::client

namespace routing_replay {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

// Samples per Stat call of an import.
constexpr size_t kStatesPerCall = 1000;
constexpr std::chrono::hours kFlushTimeout(24);  // The appender has timeouts of its own.

absl::Status Conflict(const std::string& sample, absl::string_view what) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("sample ", sample, ": the run and the directory differ: ", what),
                   {.reason = Reason::kConflictingRows, .sample = sample});
}

// Keeps the error of the first append that failed.
class FirstFailure {
 public:
  void On(const AppendOutcome& outcome) {
    absl::Status status = WithSample(outcome.status, outcome.sample);
    if (const int64_t others = outcome.conflicting_rows + outcome.late_rows; status.ok() && others > 0) {
      status = Conflict(outcome.sample, absl::StrCat("the run has other routes, or none, for ", others, " rows"));
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
  Importer(const std::filesystem::path& directory, const ExportedRun& exported, std::shared_ptr<Run> run)
      : directory_(directory), exported_(exported), run_(std::move(run)) {
    // An append that waits too long for room would make the import fail.
    appender_ = run_->NewAppender(
        {.queue_timeout = kFlushTimeout, .on_outcome = [this](const AppendOutcome& outcome) { failure_.On(outcome); }});
  }

  absl::StatusOr<ImportOutcome> Import() {
    const absl::Span<const ExportedSample> samples = exported_.samples;
    for (size_t at = 0; at < samples.size(); at += kStatesPerCall) {
      RR_RETURN_IF_ERROR(ImportSome(samples.subspan(at, kStatesPerCall)));
    }
    const absl::Status flushed = appender_->Flush(kFlushTimeout);
    RR_RETURN_IF_ERROR(failure_.status());
    if (!flushed.ok()) return flushed;
    outcome_.run = run_->name();
    outcome_.samples = static_cast<int64_t>(samples.size());
    return outcome_;
  }

 private:
  absl::Status ImportSome(absl::Span<const ExportedSample> samples) {
    std::vector<std::string> names;
    for (const ExportedSample& sample : samples) names.push_back(sample.sample);
    RR_ASSIGN_OR_RETURN(auto states, run_->StatMany(names, exported_.producer));
    std::unordered_map<std::string, SampleState> by_name;
    for (SampleState& state : states) by_name.emplace(state.sample, std::move(state));
    for (const ExportedSample& sample : samples) {
      const auto there = by_name.find(sample.sample);
      absl::Status status = ImportOne(sample, there == by_name.end() ? std::nullopt : std::optional(there->second));
      status.Update(failure_.status());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ImportOne(const ExportedSample& sample, const std::optional<SampleState>& there) {
    RR_RETURN_IF_ERROR(CheckCall());
    const bool same = there && there->content_id == sample.content_id && there->revision == sample.revision &&
                      there->group == sample.group && sample.content_id != 0 && there->num_tokens == sample.num_tokens;
    return same ? absl::OkStatus() : AppendAll(sample, there.value_or(SampleState()));
  }

  absl::Status AppendAll(const ExportedSample& sample, const SampleState& there) {
    const int64_t rows = sample.num_tokens - 1;
    if (there.committed_rows > rows || (there.sealed() && there.committed_rows != rows)) {
      return Conflict(sample.sample,
                      absl::StrCat(there.committed_rows, " rows", there.sealed() ? " (sealed)" : "", ", not ", rows));
    }
    RR_ASSIGN_OR_RETURN(const auto ids, ReadExportedIds(directory_, exported_.geometry, sample));
    const auto append = [&](RowRange part, std::optional<int64_t> seal_num_tokens) {
      std::vector<ImportAppend> appends =
          ImportAppends(exported_.geometry, exported_.producer, sample, ids, part, there.revision);
      appends.back().options.seal_num_tokens = seal_num_tokens;
      for (const ImportAppend& one : appends) {
        const absl::Status status = appender_->Append(one.options, one.tensor, one.ids);
        if (!status.ok()) return WithSample(status, sample.sample);
        if (seal_num_tokens) outcome_.bytes += static_cast<int64_t>(one.ids.size());
      }
      return absl::OkStatus();
    };
    // The server compares the rows that it already has; if they differ, nothing is appended.
    if (there.committed_rows > 0 || there.sealed()) {
      absl::Status status = append({0, there.committed_rows}, std::nullopt);
      if (status.ok()) status = appender_->Flush(kFlushTimeout);
      RR_RETURN_IF_ERROR(failure_.status());
      if (!status.ok() || there.sealed()) return status;
    }
    ++outcome_.appended;
    return append({there.committed_rows, rows}, sample.num_tokens);
  }

  const std::filesystem::path& directory_;
  const ExportedRun& exported_;
  const std::shared_ptr<Run> run_;
  FirstFailure failure_;
  ImportOutcome outcome_;
  // Declared last, so that it is destroyed before the object to which it reports outcomes.
  std::unique_ptr<Appender> appender_;
};

}  // namespace

absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options) {
  RR_ASSIGN_OR_RETURN(auto exported, ReadExportedRun(directory));
  std::erase_if(exported.samples,
                [&](const ExportedSample& sample) { return !InGroups(options.groups, sample.group); });
  RR_ASSIGN_OR_RETURN(auto run, client.OpenRun(options.run.empty() ? exported.run : options.run, exported.geometry));
  return Importer(directory, exported, std::move(run)).Import();
}

}  // namespace routing_replay
