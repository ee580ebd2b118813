#include "server/store/sample/sample_content.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace routing_replay::server {
namespace {

// The sample object, its ids and its places in the index.
constexpr int64_t kSampleOverhead = 1024;
// With the longest label and engine.
constexpr int64_t kProvenanceBytes = sizeof(Provenance) + 256;

using BlockPointer = std::shared_ptr<StoredBlock>;

// What of a content is as it mostly is, and then not packed, or is there at all.
constexpr uint64_t kWholeBlocks = 1 << 0;  // Each piece shows all of its block, which is the sample's own.
constexpr uint64_t kAllKnown = 1 << 1;     // The tokens of all rows are.
constexpr uint64_t kEndCheck = 1 << 2;
constexpr uint64_t kFullLength = 1 << 3;  // Sealed with one token more than rows.
constexpr uint64_t kRevision = 1 << 4;
constexpr uint64_t kNonce = 1 << 5;
constexpr uint64_t kPrefix = 1 << 6;
constexpr uint64_t kOtherLength = 1 << 7;
constexpr uint64_t kUnrecorded = 1 << 8;
constexpr uint64_t kKnownEnd = 1 << 9;
// Of an origin:
constexpr uint64_t kSampleEngine = 1 << 0;
constexpr uint64_t kNoLabel = 1 << 1;
constexpr uint64_t kOneAppend = 1 << 2;

// Numbers in groups of seven bits, the lowest first; those that may be negative with the sign in the lowest bit.
class Packer {
 public:
  void Add(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  void AddRows(int64_t value) { Add(static_cast<uint64_t>(value)); }
  void AddSigned(int64_t value) { Add(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63)); }
  void Add(const std::string& text) {
    Add(text.size());
    bytes_ += text;
  }
  // Of random bits.
  template <typename T>
  void AddFixed(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(const std::vector<RowRange>& ranges) {
    Add(ranges.size());
    int64_t row = 0;
    for (RowRange range : ranges) {
      AddRows(range.begin - row);
      AddRows(range.size());
      row = range.end;
    }
  }
  void Add(const Provenance& origin, const std::string& engine) {
    const bool sample_engine = origin.engine == engine;
    Add((sample_engine ? kSampleEngine : 0) | (origin.weight_label.empty() ? kNoLabel : 0) |
        (origin.appends == 1 ? kOneAppend : 0));
    AddRows(origin.rows.size());
    AddSigned(origin.weight_version);
    if (!origin.weight_label.empty()) Add(origin.weight_label);
    if (!sample_engine) Add(origin.engine);
    if (origin.appends != 1) AddSigned(origin.appends);
  }
  void Add(const RowPiece& piece) {
    AddRows(piece.rows.begin - piece.stored->rows().begin);
    AddRows(piece.rows.size());
    Add(piece.shared ? 1 : 0);
  }
  // Those at the boundaries: 0 for one that is not known.
  void Add(const TokenChecks& tokens) {
    for (int64_t window = 0; window < tokens.rows() / tokens.block_rows(); ++window) {
      const std::optional<uint32_t> check = tokens.AtWindowEnd(window);
      Add(check ? uint64_t{*check} + 1 : 0);
    }
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Of what a Packer made.
class Unpacker {
 public:
  explicit Unpacker(const char* bytes) : next_(bytes) {}

  uint64_t Number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(*next_++);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  int64_t Rows() { return static_cast<int64_t>(Number()); }
  int64_t Signed() {
    const uint64_t value = Number();
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
  }
  std::string Text() {
    const size_t size = Number();
    next_ += size;
    return std::string(next_ - size, size);
  }
  template <typename T>
  T Fixed() {
    T value;
    std::memcpy(&value, next_, sizeof(value));
    next_ += sizeof(value);
    return value;
  }
  std::vector<RowRange> Ranges() {
    std::vector<RowRange> ranges(Number());
    int64_t row = 0;
    for (RowRange& range : ranges) {
      range.begin = row + Rows();
      row = range.end = range.begin + Rows();
    }
    return ranges;
  }
  Provenance Origin(int64_t row, const std::string& engine) {
    const uint64_t flags = Number();
    Provenance origin{.rows = {row, row + Rows()}, .weight_version = Signed()};
    if ((flags & kNoLabel) == 0) origin.weight_label = Text();
    origin.engine = flags & kSampleEngine ? engine : Text();
    origin.appends = flags & kOneAppend ? 1 : Signed();
    return origin;
  }
  RowPiece Piece(const BlockPointer& block) {
    const int64_t begin = block->rows().begin + Rows(), rows = Rows();
    return {block, {begin, begin + rows}, Number() == 1};
  }
  TokenChecks Tokens(uint64_t flags, int32_t block_rows, int64_t rows) {
    const std::optional<uint32_t> end = flags & kEndCheck ? std::optional(Fixed<uint32_t>()) : std::nullopt;
    const std::optional<uint32_t> known_end = flags & kKnownEnd ? std::optional(Fixed<uint32_t>()) : std::nullopt;
    std::vector<std::optional<uint32_t>> boundaries(rows / block_rows);
    for (std::optional<uint32_t>& check : boundaries) {
      const uint64_t value = Number();
      if (value != 0) check = static_cast<uint32_t>(value - 1);
    }
    return TokenChecks(block_rows, rows, end, std::move(boundaries),
                       flags & kAllKnown ? std::vector<RowRange>{{0, rows}} : Ranges(), known_end);
  }

 private:
  const char* next_;
};

uint64_t FlagsOf(const SampleContent& content) {
  const std::vector<RowRange> all = {{0, content.rows()}};
  const absl::Span<const RowPiece> pieces = content.pieces.all();
  const bool whole = std::all_of(pieces.begin(), pieces.end(), [](const RowPiece& piece) {
    return piece.rows == piece.stored->rows() && !piece.shared;
  });
  const bool full = content.num_tokens == content.rows() + 1;
  return (whole ? kWholeBlocks : 0) | (content.tokens.known() == all ? kAllKnown : 0) |
         (content.tokens.At(content.rows()) ? kEndCheck : 0) | (full ? kFullLength : 0) |
         (content.revision != 0 ? kRevision : 0) | (content.restart_nonce != 0 ? kNonce : 0) |
         (content.prefix ? kPrefix : 0) | (content.num_tokens && !full ? kOtherLength : 0) |
         (content.unrecorded.empty() ? 0 : kUnrecorded) | (content.tokens.known_end() ? kKnownEnd : 0);
}

std::string Pack(const SampleContent& content) {
  const uint64_t flags = FlagsOf(content);
  Packer packer;
  packer.Add(content.pieces.size());
  packer.AddSigned(content.group);
  packer.AddRows(content.rows());
  packer.Add(flags);
  if ((flags & kWholeBlocks) == 0) {
    for (const RowPiece& piece : content.pieces.all()) packer.Add(piece);
  }
  if (flags & kEndCheck) packer.AddFixed(*content.tokens.At(content.rows()));
  if (flags & kKnownEnd) packer.AddFixed(*content.tokens.known_end());
  packer.Add(content.tokens);
  if ((flags & kAllKnown) == 0) packer.Add(content.tokens.known());
  packer.AddFixed(content.content_id);
  if (flags & kRevision) packer.AddRows(content.revision);
  if (flags & kNonce) packer.AddFixed(content.restart_nonce);
  if (flags & kPrefix) {
    packer.Add(content.prefix->sample);
    packer.AddSigned(content.prefix->rows);
    packer.AddSigned(content.prefix->revision);
  }
  packer.Add(content.engine);
  if (flags & kOtherLength) packer.AddRows(*content.num_tokens);
  if (flags & kUnrecorded) packer.Add(content.unrecorded);
  packer.Add(content.provenance.size());
  for (const Provenance& origin : content.provenance) packer.Add(origin, content.engine);
  return packer.bytes();
}

}  // namespace

bool SameOrigin(const Provenance& a, const Provenance& b) {
  return a.weight_version == b.weight_version && a.weight_label == b.weight_label && a.engine == b.engine;
}

void AppendProvenance(std::vector<Provenance>& list, Provenance next) {
  if (next.rows.empty()) return;
  if (list.empty() || !SameOrigin(list.back(), next)) {
    list.push_back(std::move(next));
    return;
  }
  list.back().rows.end = next.rows.end;
  list.back().appends += next.appends;
}

void TruncateProvenance(std::vector<Provenance>& list, int64_t rows) {
  while (!list.empty() && list.back().rows.begin >= rows) list.pop_back();
  if (!list.empty()) list.back().rows.end = std::min(list.back().rows.end, rows);
}

std::vector<WeightSpan> WeightSpansOf(const std::vector<Provenance>& list) {
  std::vector<WeightSpan> spans;
  for (const Provenance& from : list) {
    if (!spans.empty() && spans.back().version == from.weight_version && spans.back().label == from.weight_label) {
      spans.back().rows.end = from.rows.end;
    } else {
      spans.push_back({from.rows, from.weight_version, from.weight_label});
    }
  }
  return spans;
}

int64_t SampleContent::AppendBytes(int64_t windows, size_t ranges) {
  const SampleContent nothing{TokenChecks(/*block_rows=*/1)};
  return kSampleOverhead + nothing.growth_bytes(windows, ranges);
}

int64_t SampleContent::growth_bytes(int64_t end, size_t ranges) const {
  return kProvenanceBytes + static_cast<int64_t>(ranges * sizeof(RowRange)) + tokens.growth_bytes(end);
}

int64_t SampleContent::metadata_bytes() const {
  return kSampleOverhead + static_cast<int64_t>(provenance.size()) * kProvenanceBytes +
         static_cast<int64_t>(unrecorded.size() * sizeof(RowRange)) + tokens.memory_bytes();
}

SampleContent SampleContent::WithoutPieces() const {
  SampleContent copy(tokens);
  copy.revision = revision;
  copy.content_id = content_id;
  copy.restart_nonce = restart_nonce;
  copy.prefix = prefix;
  copy.group = group;
  copy.engine = engine;
  copy.num_tokens = num_tokens;
  copy.unrecorded = unrecorded;
  copy.provenance = provenance;
  return copy;
}

std::vector<RowPiece> SampleContent::Truncate(int64_t rows) {
  num_tokens.reset();
  unrecorded = Clip(unrecorded, {0, rows});
  TruncateProvenance(provenance, rows);
  tokens.Truncate(rows);
  return pieces.Truncate(rows);
}

SampleContent SampleContent::Prefix(int64_t rows) const {
  SampleContent child(tokens);
  child.unrecorded = Clip(unrecorded, {0, rows});
  child.provenance = provenance;
  TruncateProvenance(child.provenance, rows);
  child.tokens.Truncate(rows);
  child.pieces = pieces.Prefix(rows);
  return child;
}

struct RestingContent::Head {
  size_t blocks;
  int64_t group;
  int64_t rows;
  uint64_t flags;
  Unpacker rest;
};

RestingContent::RestingContent(SampleContent content) {
  const std::string packed = Pack(content);
  std::vector<RowPiece> pieces = content.pieces.TakeFrom(0);
  packed_ = static_cast<char*>(::operator new(pieces.size() * sizeof(BlockPointer) + packed.size())) +
            pieces.size() * sizeof(BlockPointer);
  std::memcpy(packed_, packed.data(), packed.size());
  BlockPointer* block = first_block(pieces.size());
  for (RowPiece& piece : pieces) new (block++) BlockPointer(std::move(piece.stored));
}

RestingContent::~RestingContent() {
  if (empty()) return;
  const size_t count = blocks().size();
  BlockPointer* const first = first_block(count);
  std::destroy_n(first, count);
  ::operator delete(static_cast<void*>(first));
}

RestingContent::Head RestingContent::ReadHead() const {
  Unpacker unpacker(packed_);
  return {.blocks = unpacker.Number(),
          .group = unpacker.Signed(),
          .rows = unpacker.Rows(),
          .flags = unpacker.Number(),
          .rest = unpacker};
}

BlockPointer* RestingContent::first_block(size_t count) const {
  return reinterpret_cast<BlockPointer*>(packed_) - count;
}

absl::Span<const BlockPointer> RestingContent::blocks() const {
  const size_t count = Unpacker(packed_).Number();
  return {first_block(count), count};
}

int64_t RestingContent::group() const { return ReadHead().group; }

int64_t RestingContent::rows() const { return ReadHead().rows; }

SampleContent RestingContent::Copy(int32_t block_rows) const {
  auto [count, group, rows, flags, unpacker] = ReadHead();
  RowPieces pieces;
  for (const BlockPointer& block : absl::MakeConstSpan(first_block(count), count)) {
    pieces.Append(flags & kWholeBlocks ? RowPiece{block, block->rows()} : unpacker.Piece(block));
  }
  SampleContent content(unpacker.Tokens(flags, block_rows, rows));
  content.pieces = std::move(pieces);
  content.group = group;
  content.content_id = unpacker.Fixed<uint64_t>();
  if (flags & kRevision) content.revision = unpacker.Rows();
  if (flags & kNonce) content.restart_nonce = unpacker.Fixed<uint64_t>();
  if (flags & kPrefix) {
    PrefixReference& prefix = content.prefix.emplace();
    prefix.sample = unpacker.Text();
    prefix.rows = unpacker.Signed();
    prefix.revision = unpacker.Signed();
  }
  content.engine = unpacker.Text();
  if (flags & kFullLength) content.num_tokens = rows + 1;
  if (flags & kOtherLength) content.num_tokens = unpacker.Rows();
  if (flags & kUnrecorded) content.unrecorded = unpacker.Ranges();
  content.provenance.resize(unpacker.Number());
  int64_t row = 0;
  for (Provenance& origin : content.provenance) {
    origin = unpacker.Origin(row, content.engine);
    row = origin.rows.end;
  }
  return content;
}

SampleContent RestingContent::Wake(int32_t block_rows) {
  SampleContent content = Copy(block_rows);
  const RestingContent ended(std::move(*this));  // Pieces of blocks that nobody else shows are exclusive again.
  return content;
}

}  // namespace routing_replay::server
