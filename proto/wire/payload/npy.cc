#include "proto/wire/payload/npy.h"

#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr uint8_t kMagic[] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
constexpr size_t kPrefixBytes = sizeof(kMagic) + 2;
constexpr size_t kMaxHeaderBytes = 1024;
constexpr size_t kMaxAxes = 4;

constexpr struct {
  const char* descr;
  DType dtype;
} kKnown[] = {{"|u1", DType::kU8},  {"|i1", DType::kI8},  {"<u2", DType::kU16},
              {"<i2", DType::kI16}, {"<i4", DType::kI32}, {"<i8", DType::kI64}};

absl::Status Malformed(Reason reason, absl::string_view what) {
  return Invalid(reason, "payload", absl::StrCat("npy: ", what));
}

// Reads the header's Python literal: a dict of strings, booleans and tuples of whole numbers.
class Literal {
 public:
  explicit Literal(absl::string_view text) : text_(text) {}

  bool Take(char c) {
    SkipSpace();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  std::optional<std::string> TakeString() {
    SkipSpace();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return std::nullopt;
    const size_t end = text_.find(text_.front(), 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  // Takes the letters and digits that come next; empty if there are none.
  absl::string_view TakeWord() {
    SkipSpace();
    size_t end = 0;
    while (end < text_.size() && absl::ascii_isalnum(static_cast<unsigned char>(text_[end]))) ++end;
    const absl::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    return word;
  }
  bool AtEnd() {
    SkipSpace();
    return text_.empty();
  }

 private:
  void SkipSpace() { text_ = absl::StripLeadingAsciiWhitespace(text_); }
  absl::string_view text_;
};

std::optional<std::vector<int64_t>> TakeShape(Literal& literal) {
  std::vector<int64_t> shape;
  if (!literal.Take('(')) return std::nullopt;
  while (!literal.Take(')')) {
    int64_t axis;
    const absl::string_view word = literal.TakeWord();
    if (word.empty() || !absl::SimpleAtoi(word, &axis) || axis < 0) return std::nullopt;
    shape.push_back(axis);
    if (!literal.Take(',')) {
      if (!literal.Take(')')) return std::nullopt;
      break;
    }
  }
  return shape;
}

absl::StatusOr<DType> ParseDescr(const std::string& descr) {
  for (const auto& known : kKnown) {
    if (descr == known.descr) return known.dtype;
  }
  return Malformed(Reason::kDType, absl::StrCat("dtype '", descr, "' must be one of |u1 |i1 <u2 <i2 <i4 <i8"));
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::Span<const uint8_t> file) {
  if (file.size() < kPrefixBytes || std::memcmp(file.data(), kMagic, sizeof(kMagic)) != 0) {
    return Malformed(Reason::kEncoding, "not a .npy file of version 1.0");
  }
  const size_t length = file[8] | file[9] << 8;
  if (length > kMaxHeaderBytes || length > file.size() - kPrefixBytes) {
    return Malformed(Reason::kEncoding, absl::StrCat("the header states a length of ", length,
                                                     " bytes; it is truncated or longer than 1 KiB"));
  }
  Literal literal(absl::string_view(reinterpret_cast<const char*>(file.data()) + kPrefixBytes, length));
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;
  bool good = literal.Take('{');
  while (good && !literal.Take('}')) {
    const auto key = literal.TakeString();
    good = key && literal.Take(':');
    if (!good) break;
    if (*key == "descr" && !descr) {
      descr = literal.TakeString();
      good = descr.has_value();
    } else if (*key == "fortran_order" && !fortran) {
      const absl::string_view word = literal.TakeWord();
      good = word == "True" || word == "False";
      fortran = word == "True";
    } else if (*key == "shape" && !shape) {
      shape = TakeShape(literal);
      good = shape.has_value();
    } else {
      good = false;
    }
    if (good && !literal.Take(',')) {
      good = literal.Take('}');
      break;
    }
  }
  if (!good || !literal.AtEnd() || !descr || !fortran || !shape) {
    return Malformed(Reason::kEncoding, "the header is not a dict of descr, fortran_order and shape");
  }
  RR_ASSIGN_OR_RETURN(auto dtype, ParseDescr(*descr));
  if (*fortran) return Malformed(Reason::kShape, "the array is in Fortran order; write it in C order");
  if (shape->size() > kMaxAxes)
    return Malformed(Reason::kShape, absl::StrCat("must have at most ", kMaxAxes, " axes, got ", shape->size()));
  return NpyHeader{dtype, *std::move(shape), kPrefixBytes + length};
}

std::string MakeNpyHeader(DType dtype, absl::Span<const int64_t> shape) {
  constexpr size_t kAlignment = 64;
  std::string header = "{'descr': '";
  for (const auto& known : kKnown) {
    if (known.dtype == dtype) absl::StrAppend(&header, known.descr);
  }
  absl::StrAppend(&header, "', 'fortran_order': False, 'shape': (");
  for (const int64_t axis : shape) absl::StrAppend(&header, axis, ", ");
  absl::StrAppend(&header, "), }");
  const size_t end = kPrefixBytes + header.size() + 1;
  header.append((kAlignment - end % kAlignment) % kAlignment, ' ');
  header.push_back('\n');
  std::string file(reinterpret_cast<const char*>(kMagic), sizeof(kMagic));
  file.push_back(static_cast<char>(header.size() & 0xFF));
  file.push_back(static_cast<char>(header.size() >> 8));
  return file + header;
}

}  // namespace wire
}  // namespace routing_replay
