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
#include "proto/convert/convert.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/records.pb.h"
#include "server/store/sample/sample_content.h"
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
  if (record.size() < kCrcBytes) return DamagedRecord("it is cut off");
  uint32_t crc = 0;
  std::memcpy(&crc, record.end() - kCrcBytes, kCrcBytes);
  record.remove_suffix(kCrcBytes);
  if (CrcOf(record) != crc) return DamagedRecord("its checksum does not fit");
  if (!message.ParseFromArray(record.data(), static_cast<int>(record.size()))) {
    return DamagedRecord("it cannot be parsed");
  }
  return absl::OkStatus();
}

using store::v1::PieceRecord;
using store::v1::ProvenanceRecord;
using store::v1::SampleHead;
using store::v1::WindowRecord;

template <typename Numbers>
void AddRanges(absl::Span<const RowRange> ranges, int64_t origin, Numbers& numbers) {
  for (RowRange range : ranges) {
    numbers.Add(range.begin - origin);
    numbers.Add(range.end - origin);
  }
}

// Adds ranges that `inside` contains and that follow one another.
template <typename Numbers>
absl::Status TakeRanges(const Numbers& numbers, RowRange inside, std::vector<RowRange>& ranges) {
  if (numbers.size() % 2 != 0) return DamagedRecord("a range has no end");
  for (int i = 0; i < numbers.size(); i += 2) {
    const RowRange range{inside.begin + numbers[i], inside.begin + numbers[i + 1]};
    const bool ascends = ranges.empty() || ranges.back().end <= range.begin;
    if (range.empty() || !inside.contains(range) || !ascends) return DamagedRecord("ranges overlap or lie outside");
    AppendMerged(ranges, range);
  }
  return absl::OkStatus();
}

RowRange WindowRows(const SampleContent& content, int32_t block_rows, int64_t window) {
  return Intersect(RowRange::OfSize(window * block_rows, block_rows), {0, content.rows()});
}

// The entry that `row` belongs to; null if there is none.
const Provenance* OriginOf(const SampleContent& content, int64_t row) {
  const auto after = std::upper_bound(content.provenance.begin(), content.provenance.end(), row,
                                      [](int64_t at, const Provenance& from) { return at < from.rows.begin; });
  return after == content.provenance.begin() ? nullptr : &*std::prev(after);
}

// The last range of unrecorded rows that begins at or before `row`.
RowRange UnrecordedAround(const SampleContent& content, int64_t row) {
  const auto after = std::upper_bound(content.unrecorded.begin(), content.unrecorded.end(), row,
                                      [](int64_t at, RowRange range) { return at < range.begin; });
  return after == content.unrecorded.begin() ? RowRange{} : *std::prev(after);
}

// Says what lies directly before `row`: how many windows may have no record, and the appends of the last entry there.
template <typename Record>
void SetBefore(const SampleContent& content, int32_t block_rows, int64_t row, Record& record) {
  const Provenance* origin = OriginOf(content, row - 1);
  if (origin == nullptr) return;
  record.set_appends_before(origin->appends);
  const RowRange range = UnrecordedAround(content, row - 1);
  if (row % block_rows != 0 || range.end < row) return;
  const int64_t lowest = std::max(WindowCount(range.begin, block_rows), origin->rows.begin / block_rows + 1);
  int64_t window = row / block_rows;
  while (window > lowest && !content.tokens.AtWindowEnd(window - 1)) --window;
  record.set_quiet_windows(row / block_rows - window);
}

// What the windows' records are put together to.
class Assembly {
 public:
  Assembly(int32_t block_rows, const SampleHead& head) : block_rows_(block_rows), head_(head) {}

  absl::Status Add(const WindowRecord& record,
                   const std::function<std::shared_ptr<StoredBlock>(const BlockRef&)>& block_at) {
    if (absl::Status status = AddBefore(record.window(), record); !status.ok()) return status;
    const RowRange window = Intersect(RowRange::OfSize(rows_, block_rows_), {0, head_.rows()});
    if (window.empty() || record.window() * block_rows_ != window.begin)
      return DamagedRecord("windows are not in order");
    if (absl::Status status = TakeRanges(record.unrecorded(), window, unrecorded_); !status.ok()) return status;
    for (const PieceRecord& piece : record.pieces()) {
      const RowRange rows{window.begin + piece.begin(), window.begin + piece.end()};
      const BlockRef ref{piece.block(),
                         {window.begin + piece.block_begin(), window.begin + piece.block_end()},
                         static_cast<Codec>(piece.codec())};
      if (rows.empty() || !window.contains(rows) || !ref.rows.contains(rows))
        return DamagedRecord("a piece lies outside");
      if (ref.codec != Codec::kRaw && ref.codec != Codec::kPacked) return DamagedRecord("a codec is unknown");
      if (!recorded_.empty() && rows.begin < recorded_.back().end) return DamagedRecord("pieces overlap");
      AppendMerged(recorded_, rows);
      std::shared_ptr<StoredBlock> block = block_at(ref);
      if (block == nullptr) return DamagedRecord("a block is gone");
      pieces_.Append({std::move(block), rows, piece.shared()});
    }
    for (const ProvenanceRecord& from : record.provenance()) {
      const RowRange rows{window.begin + from.begin(), window.begin + from.end()};
      const int64_t known = provenance_.empty() ? 0 : provenance_.back().rows.end;
      if (rows.begin != known || rows.empty() || !window.contains(rows)) return DamagedRecord("provenance has holes");
      AddProvenance({rows, from.weight_version(), from.weight_label(), from.engine(), from.appends()});
    }
    if (window.size() == block_rows_) {
      boundaries_.push_back(record.has_token_check() ? std::optional(record.token_check()) : std::nullopt);
    }
    rows_ = window.end;
    return absl::OkStatus();
  }

  absl::StatusOr<SampleContent> Finish() {
    if (absl::Status status = AddBefore(head_.rows() / block_rows_, head_); !status.ok()) return status;
    if (rows_ != head_.rows()) return DamagedRecord("windows are missing");
    if (Subtract({0, rows_}, unrecorded_) != recorded_) return DamagedRecord("rows are missing, or recorded and not");
    if ((provenance_.empty() ? 0 : provenance_.back().rows.end) != rows_) return DamagedRecord("provenance has holes");
    std::vector<RowRange> known;
    if (absl::Status status = TakeRanges(head_.known_tokens(), {0, rows_}, known); !status.ok()) return status;
    const std::optional<uint32_t> end = head_.has_token_check() ? std::optional(head_.token_check()) : std::nullopt;
    std::optional<uint32_t> known_end;
    if (head_.has_known_check() && !known.empty() && known.back().end < rows_) known_end = head_.known_check();
    SampleContent content(TokenChecks(block_rows_, rows_, end, std::move(boundaries_), std::move(known), known_end));
    content.revision = head_.revision();
    content.content_id = head_.content_id();
    content.restart_nonce = head_.restart_nonce();
    if (head_.has_prefix()) {
      content.prefix = {head_.prefix().sample(), head_.prefix().rows(), head_.prefix().revision()};
    }
    content.group = head_.group();
    content.engine = head_.engine();
    if (head_.has_num_tokens()) content.num_tokens = head_.num_tokens();
    content.unrecorded = std::move(unrecorded_);
    content.provenance = std::move(provenance_);
    content.pieces = std::move(pieces_);
    return content;
  }

 private:
  // The windows up to `window` that have no record, as what comes after them says.
  template <typename Record>
  absl::Status AddBefore(int64_t window, const Record& record) {
    const int64_t missing = window - rows_ / block_rows_;
    if (missing > 0 && rows_ % block_rows_ == 0) {
      if (missing > record.quiet_windows() || window > head_.rows() / block_rows_ || provenance_.empty()) {
        return DamagedRecord("windows are missing");
      }
      const RowRange rows{rows_, window * block_rows_};
      AppendMerged(unrecorded_, rows);
      provenance_.back().rows.end = rows.end;
      boundaries_.resize(boundaries_.size() + missing);
      rows_ = rows.end;
    }
    if (record.appends_before() > 0 && !provenance_.empty()) provenance_.back().appends = record.appends_before();
    return absl::OkStatus();
  }

  // Neighbors in a list differ: two alike are one that goes over the end of a window.
  void AddProvenance(Provenance next) {
    if (provenance_.empty() || !SameOrigin(provenance_.back(), next)) {
      provenance_.push_back(std::move(next));
      return;
    }
    provenance_.back().rows.end = next.rows.end;
    provenance_.back().appends = next.appends;
  }

  const int32_t block_rows_;
  const SampleHead& head_;
  int64_t rows_ = 0;
  RowPieces pieces_;
  std::vector<RowRange> recorded_;
  std::vector<RowRange> unrecorded_;
  std::vector<Provenance> provenance_;
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
  if (absl::Status status = UnframeRecord(bytes, record); !status.ok()) return status;
  v1::RoutingGeometry said;
  if (!said.ParseFromString(record.geometry())) return DamagedRecord("a geometry cannot be parsed");
  absl::StatusOr<Geometry> geometry = FromProto(said);
  if (!geometry.ok()) return DamagedRecord(geometry.status().message());
  RunInfo run{.run = record.run(), .geometry = std::make_shared<const Geometry>(*std::move(geometry))};
  const auto durability = FromProto(static_cast<v1::Durability>(record.durability()), "durability");
  if (!durability.ok() || !durability->has_value()) return DamagedRecord("a run's durability is unknown");
  run.options = {.ttl = std::chrono::milliseconds(record.ttl_ms()),
                 .strict = record.strict(),
                 .block_rows = record.block_rows(),
                 .codec = static_cast<Codec>(record.codec()),
                 .durability = *durability,
                 .shard_fingerprint = record.shard_fingerprint()};
  if (absl::Status status = CheckRunOptions(run.options); !status.ok()) return DamagedRecord(status.message());
  return run;
}

bool IsQuietWindow(const SampleContent& content, int32_t block_rows, int64_t window) {
  const RowRange rows = RowRange::OfSize(window * block_rows, block_rows);
  if (window == 0 || rows.end > content.rows()) return false;
  const Provenance* origin = OriginOf(content, rows.begin - 1);
  return UnrecordedAround(content, rows.begin).contains(rows) && !content.tokens.AtWindowEnd(window) &&
         origin != nullptr && origin->rows.contains(rows);
}

std::string EncodeHead(const SampleContent& content, int32_t block_rows) {
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
  AddRanges(content.tokens.known(), 0, *head.mutable_known_tokens());
  if (const auto check = content.tokens.known_end()) head.set_known_check(*check);
  SetBefore(content, block_rows, content.rows(), head);
  return FrameRecord(head);
}

std::string EncodeWindow(const SampleContent& content, absl::Span<const RowPiece> pieces, int32_t block_rows,
                         int64_t window, const std::function<uint64_t(const StoredBlock&)>& id_of) {
  const RowRange rows = WindowRows(content, block_rows, window);
  WindowRecord record;
  record.set_window(window);
  SetBefore(content, block_rows, rows.begin, record);
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
  AddRanges(Clip(content.unrecorded, rows), rows.begin, *record.mutable_unrecorded());
  for (const Provenance& from : content.provenance) {
    const RowRange here = Intersect(from.rows, rows);
    if (here.empty()) continue;
    ProvenanceRecord& out = *record.add_provenance();
    out.set_begin(static_cast<int32_t>(here.begin - rows.begin));
    out.set_end(static_cast<int32_t>(here.end - rows.begin));
    out.set_weight_version(from.weight_version);
    out.set_weight_label(from.weight_label);
    out.set_engine(from.engine);
    out.set_appends(from.appends);
  }
  return FrameRecord(record);
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
  if (absl::Status status = UnframeRecord(head, facts); !status.ok()) return status;
  if (facts.rows() < 0) return DamagedRecord("a row count is negative");
  Assembly assembly(block_rows, facts);
  for (const std::string& bytes : windows) {
    WindowRecord record;
    if (absl::Status status = UnframeRecord(bytes, record); !status.ok()) return status;
    if (absl::Status status = assembly.Add(record, block_at); !status.ok()) return status;
  }
  return assembly.Finish();
}

}  // namespace routing_replay::server
