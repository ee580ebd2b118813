#include "server/store/sample/resting_content.h"

#include <algorithm>
#include <string>
#include <utility>

namespace routing_replay {
namespace {

// Numbers in groups of seven bits, the lowest first; those that may be negative with the sign in the lowest bit.
class Packer {
 public:
  void Add(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  void AddSigned(int64_t value) { Add(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63)); }
  void Add(const std::string& text) {
    Add(text.size());
    bytes_ += text;
  }
  // 0 for nothing.
  void Add(const std::optional<uint32_t>& value) { Add(value ? uint64_t{*value} + 1 : 0); }
  void Add(const std::vector<RowRange>& ranges) {
    Add(ranges.size());
    int64_t row = 0;
    for (RowRange range : ranges) {
      Add(static_cast<uint64_t>(range.begin - row));
      Add(static_cast<uint64_t>(range.size()));
      row = range.end;
    }
  }
  void Add(const Provenance& origin, const std::string& engine) {
    Add(static_cast<uint64_t>(origin.rows.size()));
    AddSigned(origin.weight_version);
    Add(origin.weight_label);
    Add(origin.engine == engine ? 1 : 0);
    if (origin.engine != engine) Add(origin.engine);
    AddSigned(origin.appends);
  }
  void Add(const TokenChecks& tokens, int32_t block_rows) {
    Add(tokens.At(tokens.rows()));
    for (int64_t row = block_rows; row <= tokens.rows(); row += block_rows) Add(tokens.At(row));
    Add(tokens.known());
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
  std::optional<uint32_t> Check() {
    const uint64_t value = Number();
    return value == 0 ? std::nullopt : std::optional(static_cast<uint32_t>(value - 1));
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
    Provenance origin{.rows = {row, row + Rows()}, .weight_version = Signed(), .weight_label = Text()};
    origin.engine = Number() == 1 ? engine : Text();
    origin.appends = Signed();
    return origin;
  }
  TokenChecks Tokens(int32_t block_rows, int64_t rows) {
    const std::optional<uint32_t> end = Check();
    std::vector<std::optional<uint32_t>> boundaries(rows / block_rows);
    for (std::optional<uint32_t>& check : boundaries) check = Check();
    return TokenChecks(block_rows, rows, end, std::move(boundaries), Ranges());
  }

 private:
  const char* next_;
};

std::string Pack(const SampleContent& content, int32_t block_rows) {
  Packer packer;
  packer.AddSigned(content.group);
  packer.Add(static_cast<uint64_t>(content.rows()));
  packer.Add(content.tokens, block_rows);
  packer.Add(static_cast<uint64_t>(content.revision));
  packer.Add(content.content_id);
  packer.Add(content.restart_nonce);
  packer.Add(content.prefix ? 1 : 0);
  if (content.prefix) {
    packer.Add(content.prefix->sample);
    packer.AddSigned(content.prefix->rows);
    packer.AddSigned(content.prefix->revision);
  }
  packer.Add(content.engine);
  packer.Add(content.num_tokens ? static_cast<uint64_t>(*content.num_tokens) + 1 : 0);
  packer.Add(content.awaits_checkpoint ? 1 : 0);
  packer.Add(static_cast<uint64_t>(content.lost_end));
  packer.Add(content.unrecorded);
  packer.Add(content.provenance.size());
  for (const Provenance& origin : content.provenance) packer.Add(origin, content.engine);
  return packer.bytes();
}

}  // namespace

RestingContent::RestingContent(SampleContent content) : pieces_(std::move(content.pieces)) {
  const std::string packed = Pack(content, content.tokens.block_rows());
  auto lists = std::make_unique<char[]>(packed.size());
  std::copy(packed.begin(), packed.end(), lists.get());
  lists_ = std::move(lists);
  pieces_.Tighten();
}

int64_t RestingContent::group() const { return Unpacker(lists_.get()).Signed(); }

int64_t RestingContent::rows() const {
  Unpacker unpacker(lists_.get());
  unpacker.Signed();
  return unpacker.Rows();
}

SampleContent RestingContent::Lists(int32_t block_rows) const {
  Unpacker unpacker(lists_.get());
  const int64_t group = unpacker.Signed(), rows = unpacker.Rows();
  SampleContent content(unpacker.Tokens(block_rows, rows));
  content.group = group;
  content.revision = unpacker.Rows();
  content.content_id = unpacker.Number();
  content.restart_nonce = unpacker.Number();
  if (unpacker.Number() == 1) {
    PrefixReference& prefix = content.prefix.emplace();
    prefix.sample = unpacker.Text();
    prefix.rows = unpacker.Signed();
    prefix.revision = unpacker.Signed();
  }
  content.engine = unpacker.Text();
  const int64_t num_tokens = unpacker.Rows();
  if (num_tokens > 0) content.num_tokens = num_tokens - 1;
  content.awaits_checkpoint = unpacker.Number() == 1;
  content.lost_end = unpacker.Rows();
  content.unrecorded = unpacker.Ranges();
  content.provenance.resize(unpacker.Number());
  int64_t row = 0;
  for (Provenance& origin : content.provenance) {
    origin = unpacker.Origin(row, content.engine);
    row = origin.rows.end;
  }
  return content;
}

SampleContent RestingContent::Wake(int32_t block_rows) {
  SampleContent content = Lists(block_rows);
  content.pieces = std::move(pieces_);
  pieces_ = RowPieces();
  lists_.reset();
  return content;
}

}  // namespace routing_replay
