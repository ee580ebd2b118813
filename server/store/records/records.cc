#include "server/store/records/records.h"

#include <google/protobuf/message_lite.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/message_fields.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/records.pb.h"
#include "server/store/sample_rules.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
absl::Status DamagedRecord(absl::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("a stored record is damaged: ", what),
                   {.reason = Reason::kChecksum});
}

namespace {

constexpr size_t kCrcBytes = sizeof(uint32_t);

uint32_t CrcOf(absl::string_view bytes) {
  return Crc32c({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::string FrameRecord(const google::protobuf::MessageLite& message) {
  std::string record = message.SerializeAsString();
  const uint32_t crc = CrcOf(record);
  record.append(reinterpret_cast<const char*>(&crc), kCrcBytes);
  return record;
}

absl::Status UnframeRecord(absl::string_view record, google::protobuf::MessageLite& message) {
  if (record.size() < kCrcBytes) return DamagedRecord("it is truncated");
  uint32_t crc = 0;
  std::memcpy(&crc, record.end() - kCrcBytes, kCrcBytes);
  record.remove_suffix(kCrcBytes);
  if (CrcOf(record) != crc) return DamagedRecord("its checksum does not match");
  if (!message.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
    return DamagedRecord("it cannot be parsed");
  }
  return absl::OkStatus();
}

using store::v1::PieceRecord;
using store::v1::SampleHead;
using store::v1::WeightsRecord;
using store::v1::WindowRecord;

template <typename Numbers>
void AddRanges(absl::Span<const RowRange> ranges, Numbers& numbers) {
  int64_t row = 0;
  for (RowRange range : ranges) {
    numbers.Add(range.begin - row);
    numbers.Add(range.size());
    row = range.end;
  }
}

// Decodes a list of ranges, which must be inside [0, rows).
template <typename Numbers>
absl::StatusOr<std::vector<RowRange>> TakeRanges(const Numbers& numbers, int64_t rows) {
  std::vector<RowRange> ranges;
  if (numbers.size() % 2 != 0) return DamagedRecord("a range has no end");
  int64_t row = 0;
  for (int i = 0; i < numbers.size(); i += 2) {
    const int64_t gap = numbers[i], size = numbers[i + 1];
    if (gap < 0 || size <= 0 || gap > rows - row || size > rows - row - gap) {
      return DamagedRecord("ranges overlap or are outside the sample's rows");
    }
    ranges.push_back(RowRange::OfSize(row + gap, size));
    row = ranges.back().end;
  }
  return ranges;
}

// Assembles the windows' records into a content.
class Assembly {
 public:
  Assembly(int32_t block_rows, const SampleHead& head)
      : block_rows_(block_rows), head_(head), boundaries_(head.rows() / block_rows) {}

  absl::Status Add(const WindowRecord& record,
                   const std::function<std::shared_ptr<StoredBlock>(const BlockRef&)>& block_at) {
    if (record.window() < next_window_ || record.window() >= WindowCount(head_.rows(), block_rows_)) {
      return DamagedRecord("windows are not in order, or are outside of the sample");
    }
    next_window_ = record.window() + 1;
    const RowRange window = Intersect(RowRange::OfSize(record.window() * block_rows_, block_rows_), {0, head_.rows()});
    for (const PieceRecord& piece : record.pieces()) {
      const RowRange rows{window.begin + piece.begin(), window.begin + piece.end()};
      const BlockRef ref{piece.block(),
                         {window.begin + piece.block_begin(), window.begin + piece.block_end()},
                         static_cast<Codec>(piece.codec())};
      if (rows.empty() || !window.contains(rows) || !ref.rows.contains(rows))
        return DamagedRecord("a piece is outside the rows");
      if (ref.codec != Codec::kRaw && ref.codec != Codec::kPacked) return DamagedRecord("a codec is unknown");
      if (!recorded_.empty() && rows.begin < recorded_.back().end) return DamagedRecord("pieces overlap");
      AppendMerged(recorded_, rows);
      std::shared_ptr<StoredBlock> block = block_at(ref);
      if (block == nullptr) return DamagedRecord("a block that it refers to is missing");
      pieces_.Append({std::move(block), rows, piece.shared()});
    }
    if (!record.has_token_check()) return absl::OkStatus();
    if (window.size() < block_rows_) return DamagedRecord("a window that is not complete has a token check");
    boundaries_[record.window()] = record.token_check();
    return absl::OkStatus();
  }

  absl::StatusOr<SampleContent> Finish() {
    const int64_t rows = head_.rows();
    RR_ASSIGN_OR_RETURN(std::vector<RowRange> unrecorded, TakeRanges(head_.unrecorded(), rows));
    if (Subtract({0, rows}, unrecorded) != recorded_)
      return DamagedRecord("rows are missing, or both recorded and unrecorded");
    RR_ASSIGN_OR_RETURN(TokenChecks tokens, FinishTokens());
    SampleContent content(std::move(tokens));
    int64_t known = 0;
    for (const WeightsRecord& span : head_.weights()) {
      if (span.rows() <= 0 || span.rows() > rows - known) return DamagedRecord("weights are outside the rows");
      AppendWeights(content.weights, {RowRange::OfSize(known, span.rows()), span.version(), span.label()});
      known += span.rows();
    }
    if (known != rows) return DamagedRecord("weights do not cover all rows");
    content.revision = head_.revision();
    content.content_id = head_.content_id();
    content.restart_nonce = head_.restart_nonce();
    if (head_.has_prefix()) {
      content.prefix = {head_.prefix().sample(), head_.prefix().rows(), head_.prefix().revision()};
    }
    content.group = head_.group();
    content.engine = head_.engine();
    if (head_.has_num_tokens()) content.num_tokens = head_.num_tokens();
    content.unrecorded = std::move(unrecorded);
    content.pieces = std::move(pieces_);
    return content;
  }

 private:
  absl::StatusOr<TokenChecks> FinishTokens() {
    RR_ASSIGN_OR_RETURN(std::vector<RowRange> known, TakeRanges(head_.known_tokens(), head_.rows()));
    // A window has a check if the tokens of its last row are known.
    size_t at = 0;
    for (size_t window = 0; window < boundaries_.size(); ++window) {
      const int64_t last = static_cast<int64_t>(window + 1) * block_rows_ - 1;
      while (at < known.size() && known[at].end <= last) ++at;
      const bool expected = at < known.size() && known[at].begin <= last;
      if (boundaries_[window].has_value() != expected) return DamagedRecord("a token check is missing or unexpected");
    }
    const std::optional<uint32_t> end = head_.has_token_check() ? std::optional(head_.token_check()) : std::nullopt;
    std::optional<uint32_t> known_end;
    if (head_.has_known_check() && !known.empty() && known.back().end < head_.rows()) {
      known_end = head_.known_check();
    }
    return TokenChecks(block_rows_, head_.rows(), end, std::move(boundaries_), std::move(known), known_end);
  }

  const int32_t block_rows_;
  const SampleHead& head_;
  int64_t next_window_ = 0;
  RowPieces pieces_;
  std::vector<RowRange> recorded_;
  std::vector<std::optional<uint32_t>> boundaries_;
};

}  // namespace

std::string EncodeRun(const RunInfo& run) {
  store::v1::RunRecord record;
  record.set_run(run.run);
  record.set_geometry(ToProto(*run.geometry).SerializeAsString());
  record.set_ttl_ms(std::chrono::duration_cast<std::chrono::milliseconds>(run.options.ttl).count());
  record.set_strict(run.options.strict);
  record.set_block_rows(run.options.block_rows);
  record.set_codec(static_cast<int32_t>(run.options.codec));
  record.set_durability(ToProto(run.options.durability));
  record.set_shard_fingerprint(run.options.shard_fingerprint);
  return FrameRecord(record);
}

absl::StatusOr<RunInfo> DecodeRun(absl::string_view bytes) {
  store::v1::RunRecord record;
  RR_RETURN_IF_ERROR(UnframeRecord(bytes, record));
  v1::RoutingGeometry said;
  if (!said.ParseFromString(record.geometry())) return DamagedRecord("a geometry cannot be parsed");
  absl::StatusOr<Geometry> geometry = FromProto(said);
  if (!geometry.ok()) return DamagedRecord(geometry.status().message());
  RunInfo run{.run = record.run(), .geometry = std::make_shared<const Geometry>(*std::move(geometry))};
  MessageFields f;
  const auto durability = f.ReadAnyDurability("durability", static_cast<v1::Durability>(record.durability()));
  if (!f.status().ok() || !durability) return DamagedRecord("a run's durability is unknown");
  run.options = {.ttl = std::chrono::milliseconds(record.ttl_ms()),
                 .strict = record.strict(),
                 .block_rows = record.block_rows(),
                 .codec = static_cast<Codec>(record.codec()),
                 .durability = *durability,
                 .shard_fingerprint = record.shard_fingerprint()};
  if (absl::Status status = CheckRunOptions(run.options); !status.ok()) return DamagedRecord(status.message());
  return run;
}

std::string EncodeHead(const SampleContent& content) {
  SampleHead head;
  head.set_revision(content.revision);
  head.set_content_id(content.content_id);
  head.set_restart_nonce(content.restart_nonce);
  if (content.prefix) {
    head.mutable_prefix()->set_sample(content.prefix->sample);
    head.mutable_prefix()->set_rows(content.prefix->rows);
    head.mutable_prefix()->set_revision(content.prefix->revision);
  }
  head.set_group(content.group);
  head.set_engine(content.engine);
  head.set_rows(content.rows());
  if (content.num_tokens) head.set_num_tokens(*content.num_tokens);
  if (const auto check = content.tokens.At(content.rows())) head.set_token_check(*check);
  AddRanges(content.tokens.known(), *head.mutable_known_tokens());
  if (const auto check = content.tokens.known_end()) head.set_known_check(*check);
  AddRanges(content.unrecorded, *head.mutable_unrecorded());
  for (const WeightSpan& span : content.weights) {
    WeightsRecord& out = *head.add_weights();
    out.set_rows(span.rows.size());
    out.set_version(span.version);
    out.set_label(span.label);
  }
  return FrameRecord(head);
}

std::string EncodeWindow(const SampleContent& content, absl::Span<const RowPiece> pieces, int32_t block_rows,
                         int64_t window, const std::function<uint64_t(const StoredBlock&)>& id_of) {
  const RowRange rows = Intersect(RowRange::OfSize(window * block_rows, block_rows), {0, content.rows()});
  WindowRecord record;
  record.set_window(window);
  for (size_t i = FirstEndingAfter(pieces, rows.begin); i < pieces.size() && pieces[i].rows.begin < rows.end; ++i) {
    const RowPiece& piece = pieces[i];
    PieceRecord& out = *record.add_pieces();
    out.set_block(id_of(*piece.stored));
    out.set_begin(static_cast<int32_t>(piece.rows.begin - rows.begin));
    out.set_end(static_cast<int32_t>(piece.rows.end - rows.begin));
    out.set_block_begin(static_cast<int32_t>(piece.stored->rows().begin - rows.begin));
    out.set_block_end(static_cast<int32_t>(piece.stored->rows().end - rows.begin));
    out.set_codec(static_cast<int32_t>(piece.stored->codec()));
    out.set_shared(piece.shared);
  }
  if (rows.size() == block_rows) {
    if (const auto check = content.tokens.AtWindowEnd(window)) record.set_token_check(*check);
  }
  return record.pieces().empty() && !record.has_token_check() ? "" : FrameRecord(record);
}

bool WindowShows(absl::string_view bytes, uint64_t block) {
  WindowRecord record;
  if (!UnframeRecord(bytes, record).ok()) return false;
  return std::any_of(record.pieces().begin(), record.pieces().end(),
                     [&](const PieceRecord& piece) { return piece.block() == block; });
}

absl::StatusOr<SampleContent> DecodeContent(
    absl::string_view head, absl::Span<const std::string> windows, int32_t block_rows,
    const std::function<std::shared_ptr<StoredBlock>(const BlockRef&)>& block_at) {
  SampleHead facts;
  RR_RETURN_IF_ERROR(UnframeRecord(head, facts));
  if (facts.rows() < 0) return DamagedRecord("a row count is negative");
  Assembly assembly(block_rows, facts);
  for (const std::string& bytes : windows) {
    WindowRecord record;
    RR_RETURN_IF_ERROR(UnframeRecord(bytes, record));
    RR_RETURN_IF_ERROR(assembly.Add(record, block_at));
  }
  return assembly.Finish();
}

}  // namespace routing_replay::server
