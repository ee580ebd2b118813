#include "routing_replay/trainer/source.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "trainer_plugin/fetch/known_sample.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

struct LocalSource::Entry {
  DecodedRows rows;
  KnownSample known;
};

namespace {

// Replaces the decoder's field names (those of an append) by those of LocalSource::Add.
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

// Checks that the layout's layers are those of the geometry, in order, and have the same K.
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
    if (local[row] != kNowhere) continue;
    if (!ranges.empty() && ranges.back().end == row) {
      ++ranges.back().end;
    } else {
      ranges.push_back({row, row + 1});
    }
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

SampleRecord LocalSource::Answer(const SampleRead& asked, Producer) const {
  const Entry* entry = Find(asked);
  return entry == nullptr ? NoSuchSample(asked) : entry->known.Answer(asked);
}

absl::Status LocalSource::Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                                StagingSink& sink) const {
  return StageBlocks(geometry_, plan, Find(asked)->rows.blocks, asked.rows, index, sink);
}

}  // namespace routing_replay::trainer
