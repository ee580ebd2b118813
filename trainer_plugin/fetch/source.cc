#include "routing_replay/trainer/source.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/block/block.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

// A sealed sample of a source without a server, with rows 0 … num_tokens − 2. For its namespace see c_api/calls.cc.
struct KnownSample {
  int64_t num_tokens = 0;
  std::vector<RowRange> unrecorded;      // Normal list.
  std::vector<uint32_t> token_ids;       // From position 0 on, at least one per row; or empty.
  std::vector<TokenCheck> token_checks;  // Used if there are no token ids.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<WeightSpan> weights;

  // Returns the record that a server would return for this read, with index 0. A token check at a position whose tokens
  // are not known gives kTokensNotKnown.
  SampleRecord Answer(const SampleRead& asked) const {
    SampleRecord record{.status = SampleStatus::kOk,
                        .committed_rows = num_tokens - 1,
                        .num_tokens = num_tokens,
                        .revision = revision,
                        .content_id = content_id,
                        .unrecorded = unrecorded,
                        .weights = weights};
    Judge(asked, record);
    return record;
  }

 private:
  std::optional<uint32_t> TokenCheckAt(int64_t rows) const {
    if (rows == 0) return 0;
    if (rows > 0 && rows <= static_cast<int64_t>(token_ids.size())) {
      return TokenCheckExtend(0, {reinterpret_cast<const uint8_t*>(token_ids.data()), rows * sizeof(uint32_t)});
    }
    for (const TokenCheck& check : token_checks) {
      if (check.rows == rows) return check.crc32c;
    }
    return std::nullopt;
  }

  void Judge(const SampleRead& asked, SampleRecord& record) const {
    const auto reject = [&](SampleStatus status, std::string message) {
      record.status = status;
      record.message = std::move(message);
    };
    if (asked.num_tokens && *asked.num_tokens != num_tokens) {
      return reject(SampleStatus::kLengthMismatch,
                    absl::StrCat("has ", num_tokens, " tokens, expected ", *asked.num_tokens));
    }
    const int64_t rows = num_tokens - 1;
    if (!asked.rows.empty() && asked.rows.back().end > rows) {
      return reject(SampleStatus::kOutOfRange,
                    absl::StrCat("requested rows up to ", asked.rows.back().end, ", has ", rows));
    }
    for (const TokenCheck& check : asked.token_checks) {
      const std::optional<uint32_t> known = TokenCheckAt(check.rows);
      if (known == check.crc32c) continue;
      return reject(known ? SampleStatus::kTokensMismatch : SampleStatus::kTokensNotKnown,
                    absl::StrCat(known ? "other tokens" : "tokens not known", " before row ", check.rows));
    }
    if (rows > 0 && TotalRows(unrecorded) == rows) return reject(SampleStatus::kNotRecorded, "has no recorded row");
  }
};

namespace {

SampleRecord NoSuchSample(const SampleRead& asked) {
  return {.status = SampleStatus::kNotFound,
          .message = asked.sample.empty() ? absl::StrCat("there is no sample with handle ", asked.handle)
                                          : absl::StrCat("there is no sample \"", asked.sample, "\"")};
}

// Two samples must not have the same handle, because handles also identify samples.
absl::Status HandleCollision(const std::string& sample, const std::string& other) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("sample \"", sample, "\" has the same handle as sample \"", other, "\""),
                   {.reason = Reason::kHandleCollision, .sample = sample});
}

// Stages rows of one block as one piece.
absl::Status StageRows(const Geometry& geometry, const ReplayPlan& plan, const BlockView& block, RowRange rows,
                       int32_t index, StagingSink& sink) {
  std::vector<uint8_t>& staging = *sink.staging();
  const size_t begin = staging.size();
  for (const OwnedLayer& layer : plan.layers) {
    const size_t at = staging.size();
    staging.resize(at + geometry.cut_bytes(layer.ordinal, rows.begin - block.rows.begin, rows.size(), block.codec));
    RR_RETURN_IF_ERROR(CutPlane(geometry, block, layer.ordinal, rows, absl::MakeSpan(staging).subspan(at)).status());
  }
  return sink.OnPiece({.sample_index = index,
                       .layer_begin = 0,
                       .layer_count = static_cast<int32_t>(plan.layers.size()),
                       .rows = rows,
                       .codec = block.codec,
                       .bytes = absl::MakeConstSpan(staging).subspan(begin)});
}

// Stages those of the requested `rows` that the blocks of a sample contain, for all layers of the plan. Checks planes
// against their CRCs. index: the number of the sample in the read.
absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink) {
  for (const Block& block : blocks) {
    for (const RowRange asked : Clip(rows, block.rows)) {
      RR_RETURN_IF_ERROR(StageRows(geometry, plan, block.view(), asked, index, sink));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StagedRows> Source::Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                         const FetchOptions& options) const {
  RR_RETURN_IF_ERROR(CheckFetch(geometry(), plan, sequences));
  return Fetch(plan, SlicesToRead(plan, sequences), sequences, options);
}

absl::StatusOr<StagedRows> Source::Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                         absl::Span<const FetchSequence> sequences, const FetchOptions& options) const {
  RR_RETURN_IF_ERROR(CheckFetch(geometry(), plan, sequences));
  StagedRows out;
  StagingSink sink(plan, slices, sequences, options, out);
  const ReadRequest request = MakeReadRequest(plan, slices, sequences, options);
  for (int32_t index = 0; index < static_cast<int32_t>(request.samples.size()); ++index) {
    const SampleRead& asked = request.samples[index];
    SampleRecord record = Inspect(asked);
    record.index = index;
    RR_RETURN_IF_ERROR(sink.OnRecord(record));
    if (record.status != SampleStatus::kOk) continue;
    RR_RETURN_IF_ERROR(Stage(asked, index, plan, sink));
  }
  return out;
}

struct LocalSource::Entry {
  DecodedRows rows;
  KnownSample known;
};

namespace {

// Replaces the decoder's field name in an error ("append.…") by that of LocalSource::Add, and names the sample.
absl::Status InNamesOfAdd(const absl::Status& status, const std::string& sample) {
  auto detail = GetErrorDetail(status);
  if (!detail) return status;
  constexpr absl::string_view kPrefix = "append.";
  absl::string_view message = status.message();
  if (absl::StartsWith(detail->field, kPrefix)) {
    detail->field = detail->field.substr(kPrefix.size());
    absl::ConsumePrefix(&message, kPrefix);
  }
  detail->sample = sample;
  return MakeError(status.code(), message, *detail);
}

// The content id: a hash of rows, unrecorded ranges and length.
uint64_t HashOf(const DecodedRows& rows) {
  std::vector<int64_t> words = {rows.rows.begin, rows.rows.end};
  for (const Block& block : rows.blocks) {
    words.insert(words.end(), {block.rows.begin, block.rows.end, static_cast<int64_t>(block.codec)});
    words.insert(words.end(), block.plane_crc32c.begin(), block.plane_crc32c.end());
  }
  return XXH64(words.data(), words.size() * sizeof(int64_t), 0);
}

// Checks that the layout has the geometry's layers in order, with equal K, and as many `rows` and `bytes` as given.
absl::Status CheckRecorded(const Geometry& geometry, const BufferLayout& layout, size_t rows, size_t bytes) {
  bool same = layout.geometry() == geometry && layout.num_layers() == geometry.num_moe_layers();
  for (int32_t slot = 0; same && slot < layout.num_layers(); ++slot) {
    same = layout.ordinal(slot) == slot && layout.layer(slot).top_k == layout.layer(0).top_k &&
           layout.layer(slot).id_bytes() == layout.layer(0).id_bytes();
  }
  if (!same) {
    return Invalid(Reason::kGeometryMismatch, "layout", "must have all layers of the source, all with the same K");
  }
  if (static_cast<int64_t>(rows) == layout.rows() && static_cast<int64_t>(bytes) == layout.bytes()) {
    return absl::OkStatus();
  }
  return Invalid(Reason::kLength, "indices",
                 absl::StrCat(bytes, " bytes and ", rows, " rows, expected ", layout.bytes(), " and ", layout.rows(),
                              " of the layout"));
}

constexpr int64_t kNowhere = -1;
constexpr uint64_t kNoContentId = 0;
// No limit is needed here, because the bytes are in memory already.
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 40;

// Finds for each row of the sequence a local row that shows it.
std::vector<int64_t> LocalRowsOf(absl::Span<const LocalRow> row_map, int32_t sequence, int64_t rows) {
  std::vector<int64_t> local(rows, kNowhere);
  for (size_t i = 0; i < row_map.size(); ++i) {
    const LocalRow& shown = row_map[i];
    if (shown.state == RowState::kReplayed && shown.sequence == sequence && shown.row < rows) {
      local[shown.row] = static_cast<int64_t>(i);
    }
  }
  return local;
}

// Returns the rows of the sequence that no local row shows.
std::vector<RowRange> Missing(const std::vector<int64_t>& local) {
  std::vector<RowRange> ranges;
  for (int64_t row = 0; row < static_cast<int64_t>(local.size()); ++row) {
    if (local[row] == kNowhere) AppendMerged(ranges, {row, row + 1});
  }
  return ranges;
}

}  // namespace

LocalSource::LocalSource(Geometry geometry, HandleFunction handle_of)
    : geometry_(std::move(geometry)), handle_of_(std::move(handle_of)) {}
LocalSource::~LocalSource() = default;
LocalSource::LocalSource(LocalSource&&) noexcept = default;
LocalSource& LocalSource::operator=(LocalSource&&) noexcept = default;

absl::Status LocalSource::Add(const LocalSample& sample, const TensorDescription& tensor,
                              absl::Span<const uint8_t> payload) {
  return InNamesOfAdd(CheckAndAdd(sample, tensor, payload, true), sample.sample);
}

absl::Status LocalSource::AddRecorded(const LocalSample& sample, int32_t sequence, const BufferLayout& layout,
                                      absl::Span<const LocalRow> row_map, absl::Span<const uint8_t> indices) {
  if (!sample.num_tokens || *sample.num_tokens < 1 || *sample.num_tokens > kMaxLocalRows) {
    return Invalid(Reason::kField, "num_tokens", "must be given and in range");
  }
  if (!sample.unrecorded.empty())
    return Invalid(Reason::kField, "unrecorded", "must be empty: the row map determines it");
  RR_RETURN_IF_ERROR(CheckRecorded(geometry_, layout, row_map.size(), indices.size()));
  const std::vector<int64_t> local = LocalRowsOf(row_map, sequence, *sample.num_tokens - 1);
  LocalSample recorded = sample;
  recorded.unrecorded = Missing(local);
  std::vector<uint8_t> payload;
  int64_t rows = 0;
  for (int64_t row : local) {
    if (row == kNowhere) continue;
    ++rows;
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      const int64_t size = layout.row_bytes(slot);
      const absl::Span<const uint8_t> ids = layout.slab(indices, slot).subspan(row * size, size);
      payload.insert(payload.end(), ids.begin(), ids.end());
    }
  }
  const LayerRouting& layer = layout.layer(0);
  const TensorDescription tensor{.dtype = layer.id_bytes() == 1 ? DType::kU8 : DType::kU16,
                                 .shape = {rows, layout.num_layers(), layer.top_k}};
  return InNamesOfAdd(CheckAndAdd(recorded, tensor, payload, false), sample.sample);
}

absl::Status LocalSource::CheckAndAdd(const LocalSample& sample, const TensorDescription& tensor,
                                      absl::Span<const uint8_t> payload, bool has_content_id) {
  RR_RETURN_IF_ERROR(CheckId(sample.sample, "sample"));
  DecodeOptions options{.unrecorded = sample.unrecorded, .codec = Codec::kRaw, .max_payload_bytes = kMaxPayloadBytes};
  if (sample.num_tokens && *sample.num_tokens < 1) {
    return Invalid(Reason::kField, "num_tokens", absl::StrCat("must be at least 1, got ", *sample.num_tokens));
  }
  if (sample.num_tokens) options.expected_rows = *sample.num_tokens - 1;
  RR_ASSIGN_OR_RETURN(auto rows, DecodeTensor(geometry_, tensor, payload, options));
  if (!sample.token_ids.empty() && static_cast<int64_t>(sample.token_ids.size()) < rows.rows.end) {
    return Invalid(Reason::kRowCount, "token_ids",
                   absl::StrCat(sample.token_ids.size(), " ids for ", rows.rows.end, " rows"));
  }
  const int64_t num_tokens = rows.rows.end + 1;
  const std::string& holder = names_.emplace(handle_of_(sample.sample), sample.sample).first->second;
  if (holder != sample.sample) return HandleCollision(sample.sample, holder);
  KnownSample known{.num_tokens = num_tokens,
                    .unrecorded = rows.unrecorded,
                    .token_ids = {sample.token_ids.begin(), sample.token_ids.end()},
                    .content_id = has_content_id ? HashOf(rows) : kNoContentId};
  samples_[sample.sample] = std::make_unique<const Entry>(Entry{std::move(rows), std::move(known)});
  return absl::OkStatus();
}

bool LocalSource::Remove(absl::string_view sample) {
  if (samples_.erase(std::string(sample)) == 0) return false;
  names_.erase(handle_of_(sample));
  return true;
}

const LocalSource::Entry* LocalSource::Find(const SampleRead& asked) const {
  const auto name = asked.sample.empty() ? names_.find(BareHandle(asked.handle)) : names_.end();
  const auto found = samples_.find(name == names_.end() ? asked.sample : name->second);
  return found == samples_.end() ? nullptr : found->second.get();
}

SampleRecord LocalSource::Inspect(const SampleRead& asked) const {
  const Entry* entry = Find(asked);
  return entry == nullptr ? NoSuchSample(asked) : entry->known.Answer(asked);
}

absl::Status LocalSource::Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                                StagingSink& sink) const {
  return StageBlocks(geometry_, plan, Find(asked)->rows.blocks, asked.rows, index, sink);
}

struct DirectorySource::Contents {
  std::filesystem::path directory;
  ExportedRun run;
  std::unordered_map<std::string, const ExportedSample*> by_name;  // Points into run.samples, like the next member.
  std::unordered_map<int64_t, const ExportedSample*> by_handle;

  const ExportedSample* Find(const SampleRead& asked) const {
    if (!asked.sample.empty()) {
      const auto found = by_name.find(asked.sample);
      return found == by_name.end() ? nullptr : found->second;
    }
    const auto found = by_handle.find(BareHandle(asked.handle));
    return found == by_handle.end() ? nullptr : found->second;
  }
};

namespace {

absl::StatusOr<std::vector<Block>> ReadBlocks(const std::filesystem::path& directory, const Geometry& geometry,
                                              const ExportedSample& sample) {
  RR_ASSIGN_OR_RETURN(const auto file, ReadExportedFile(directory, sample));
  const DecodeOptions options{.unrecorded = sample.unrecorded,
                              .expected_rows = sample.num_tokens - 1,
                              .codec = Codec::kRaw,
                              .max_payload_bytes = sample.file_bytes};
  auto rows =
      DecodeTensor(geometry, {.encoding = Encoding::kNpy, .layer_basis = LayerBasis::kMoeLayers}, file, options);
  if (!rows.ok()) return WithSample(rows.status(), sample.sample);
  return std::move(rows->blocks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const DirectorySource>> DirectorySource::Open(const std::filesystem::path& directory,
                                                                             const HandleFunction& handle_of) {
  RR_ASSIGN_OR_RETURN(auto run, ReadExportedRun(directory));
  auto contents = std::make_unique<Contents>(Contents{.directory = directory, .run = std::move(run)});
  for (const ExportedSample& sample : contents->run.samples) {
    contents->by_name[sample.sample] = &sample;
    const auto [holder, is_new] = contents->by_handle.emplace(handle_of(sample.sample), &sample);
    if (!is_new) return HandleCollision(sample.sample, holder->second->sample);
  }
  return std::unique_ptr<const DirectorySource>(new DirectorySource(std::move(contents)));
}

DirectorySource::DirectorySource(std::unique_ptr<const Contents> contents) : contents_(std::move(contents)) {}
DirectorySource::~DirectorySource() = default;

const Geometry& DirectorySource::geometry() const { return contents_->run.geometry; }
const std::string& DirectorySource::run() const { return contents_->run.run; }
Producer DirectorySource::producer() const { return contents_->run.producer; }

std::vector<std::string> DirectorySource::samples() const {
  std::vector<std::string> names;
  for (const ExportedSample& sample : contents_->run.samples) names.push_back(sample.sample);
  return names;
}

SampleRecord DirectorySource::Inspect(const SampleRead& asked) const {
  const ExportedSample* sample = contents_->Find(asked);
  if (sample == nullptr) return NoSuchSample(asked);
  return KnownSample{.num_tokens = sample->num_tokens,
                     .unrecorded = sample->unrecorded,
                     .token_checks = sample->token_checks,
                     .revision = sample->revision,
                     .content_id = sample->content_id,
                     .weights = sample->weights}
      .Answer(asked);
}

absl::Status DirectorySource::Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                                    StagingSink& sink) const {
  RR_ASSIGN_OR_RETURN(const auto blocks, ReadBlocks(contents_->directory, geometry(), *contents_->Find(asked)));
  return StageBlocks(geometry(), plan, blocks, asked.rows, index, sink);
}

}  // namespace routing_replay::trainer
