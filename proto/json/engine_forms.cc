#include "proto/json/engine_forms.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/json/json.h"
#include "proto/wire/payload/narrow.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr char kMagic[] = "nrlre1";
constexpr size_t kMaxHeadBytes = 128;  // Of the three fields before the base64.

absl::StatusOr<std::vector<int64_t>> ParseAxes(absl::string_view text) {
  std::vector<int64_t> shape;
  for (const absl::string_view word : absl::StrSplit(text, 'x')) {
    int64_t axis = 0;
    const bool digits =
        !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return absl::ascii_isdigit(c); });
    if (!digits || !absl::SimpleAtoi(word, &axis)) {
      return Invalid(Reason::kShape, "payload",
                     absl::StrCat("nrlre1: must be <rows>x<layers>x<K>, got \"", text, "\""));
    }
    shape.push_back(axis);
  }
  if (shape.size() == 3) return shape;
  return Invalid(Reason::kShape, "payload", absl::StrCat("nrlre1: must have 3 axes, got ", shape.size()));
}

using nlohmann::json;

absl::StatusOr<std::vector<int64_t>> ShapeFrom(const json& value, size_t axes) {
  const auto is_axis = [](const json& axis) { return axis.is_number_integer() && axis >= 0 && axis <= kMaxRows; };
  if (!value.is_array() || value.size() != axes || !std::all_of(value.begin(), value.end(), is_axis)) {
    return Invalid(
        Reason::kShape, "append.tensor.shape",
        absl::StrCat("must be ", axes == 3 ? "[rows, layers, K]" : "[layers, K]", ", got ", DumpJson(value)));
  }
  return value.get<std::vector<int64_t>>();
}

absl::StatusOr<DType> DTypeOf(ObjectDialect dialect, const json& object) {
  const auto found = object.find("dtype");
  if (found == object.end() || found->is_null()) {
    if (dialect == ObjectDialect::kPrimeRl) return DType::kU8;
    if (dialect == ObjectDialect::kSgLang) return DType::kI32;
    return Invalid(Reason::kDType, "append.tensor.dtype", "is missing");
  }
  if (!found->is_string()) return Invalid(Reason::kDType, "append.tensor.dtype", "must be a string");
  const auto dtype = DTypeFromName(found->get<std::string>());
  if (!dtype.ok()) return dtype.status();
  const bool narrow = *dtype == DType::kU8 || *dtype == DType::kI32;
  if (dialect == ObjectDialect::kSkyRl && !narrow && *dtype != DType::kI16) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "must be uint8, int16 or int32");
  }
  if (dialect == ObjectDialect::kSgLang && !narrow && *dtype != DType::kU16) {
    return Invalid(Reason::kDType, "append.tensor.dtype", "must be uint8, uint16 or int32");
  }
  return dtype;
}

using Indexer = simdjson::internal::dom_parser_implementation;

constexpr const char* kTargets[] = {"routed_experts", "prompt_routed_experts"};
constexpr const char* kPlaces[] = {"choices", "meta_info", "sglext", "sgl_ext"};
constexpr const char* kData[] = {"data"};
constexpr size_t kMaxDepth = 16;      // Of the places that are looked at.
constexpr size_t kMaxNesting = 1024;  // That the library prepares for; nothing here depends on it.

absl::Status Malformed(absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("body: ", what),
                   {.reason = Reason::kEncoding, .field = "body"});
}

// Walks the body's tokens, of which the library's first stage tells where they begin: brackets, colons, commas, and the
// first characters of texts, numbers and words. That stage is the one that looks at every byte, with the fastest
// instructions of this CPU, and stays inside the body.
class Walker {
 public:
  Walker(absl::Span<const uint8_t> body, absl::Span<const uint32_t> tokens)
      : body_(reinterpret_cast<const char*>(body.data()), body.size()), tokens_(tokens) {}

  // False if the body is not what it should be.
  bool Root() { return (Kind() == '{' || Kind() == '[') && Place() && next_ == tokens_.size(); }
  std::vector<RouteText> take() { return std::move(found_); }

 private:
  // The first character of the present token; 0 behind the last one.
  char Kind() const { return next_ < tokens_.size() ? body_[tokens_[next_]] : '\0'; }
  bool Take(char kind) {
    if (Kind() != kind) return false;
    ++next_;
    return true;
  }

  // What is between the quotes of the text at hand.
  std::optional<absl::string_view> Text() const {
    if (Kind() != '"') return std::nullopt;
    const size_t begin = tokens_[next_];
    const size_t end = next_ + 1 < tokens_.size() ? tokens_[next_ + 1] : body_.size();
    const size_t quote = body_.substr(0, end).rfind('"');
    if (quote <= begin) return std::nullopt;
    return body_.substr(begin + 1, quote - begin - 1);
  }

  // A value, by its brackets alone.
  bool Skip() {
    size_t depth = 0;
    do {
      const char kind = Kind();
      if (kind == '\0') return false;
      if (kind == '{' || kind == '[') ++depth;
      if (kind == '}' || kind == ']') {
        if (depth == 0) return false;
        --depth;
      }
      ++next_;
    } while (depth > 0);
    return true;
  }

  template <typename Body>
  bool EachField(Body&& body) {
    if (!Take('{')) return false;
    if (Take('}')) return true;
    do {
      const auto key = Text();
      if (!key) return false;
      ++next_;
      if (!Take(':') || !body(*key)) return false;
    } while (Take(','));
    return Take('}');
  }

  template <typename Body>
  bool EachItem(Body&& body) {
    if (!Take('[')) return false;
    if (Take(']')) return true;
    size_t index = 0;
    do {
      path_.emplace_back(index++);
      const bool good = body();
      path_.pop_back();
      if (!good) return false;
    } while (Take(','));
    return Take(']');
  }

  // A response, a list of them or of choices, or an extension.
  bool Place() {
    if (path_.size() >= kMaxDepth) return Skip();
    if (Kind() == '[') return EachItem([this] { return Place(); });
    if (Kind() != '{') return Skip();
    return EachField([this](absl::string_view key) {
      if (const char* name = Known(key, kTargets)) return Under(name, [this] { return Routes(); });
      if (const char* name = Known(key, kPlaces)) return Under(name, [this] { return Place(); });
      return Skip();
    });
  }

  bool Routes() {
    if (Kind() == '[') return EachItem([this] { return KeepText(); });
    if (Kind() != '{') return KeepText();
    return EachField([this](absl::string_view key) {
      const char* name = Known(key, kData);
      return name == nullptr ? Skip() : Under(name, [this] { return KeepText(); });
    });
  }

  bool KeepText() {
    if (Kind() != '"') return Skip();
    const auto text = Text();
    if (!text) return false;
    ++next_;
    if (std::memchr(text->data(), '\\', text->size()) == nullptr) {
      found_.push_back({path_, static_cast<size_t>(text->data() - body_.data()), text->size()});
    }
    return true;
  }

  template <size_t N>
  static const char* Known(absl::string_view key, const char* const (&names)[N]) {
    for (const char* name : names) {
      if (key == name) return name;
    }
    return nullptr;
  }

  template <typename Body>
  bool Under(const char* name, Body&& body) {
    path_.emplace_back(std::string(name));
    const bool good = body();
    path_.pop_back();
    return good;
  }

  const absl::string_view body_;
  const absl::Span<const uint32_t> tokens_;
  size_t next_ = 0;
  std::vector<std::variant<std::string, size_t>> path_;
  std::vector<RouteText> found_;
};

}  // namespace

absl::StatusOr<TextForm> OpenNrlre1(absl::Span<const uint8_t> text) {
  const absl::string_view head(reinterpret_cast<const char*>(text.data()), std::min(text.size(), kMaxHeadBytes));
  const std::vector<absl::string_view> parts = absl::StrSplit(head, absl::MaxSplits(':', 3));
  if (parts.size() != 4 || parts[0] != kMagic) {
    return Invalid(Reason::kEncoding, "payload", "must be nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>");
  }
  const auto dtype = DTypeFromName(parts[1]);
  if (!dtype.ok() || (*dtype != DType::kI8 && *dtype != DType::kI16 && *dtype != DType::kI32)) {
    return Invalid(Reason::kDType, "payload",
                   absl::StrCat("nrlre1: must be int8, int16 or int32, got \"", parts[1], "\""));
  }
  auto shape = ParseAxes(parts[2]);
  if (!shape.ok()) return shape.status();
  TextForm form;
  form.tensor = {.encoding = Encoding::kBase64, .dtype = *dtype, .shape = *std::move(shape)};
  form.data = text.subspan(parts[3].data() - head.data());
  return form;
}

absl::StatusOr<DType> DTypeFromName(absl::string_view name) {
  static constexpr struct {
    const char* name;
    DType dtype;
  } kNames[] = {{"uint8", DType::kU8},  {"int8", DType::kI8},   {"uint16", DType::kU16},
                {"int16", DType::kI16}, {"int32", DType::kI32}, {"int64", DType::kI64}};
  for (const auto& known : kNames) {
    if (name == known.name) return known.dtype;
  }
  return Invalid(Reason::kDType, "append.tensor.dtype",
                 absl::StrCat("must be uint8, int8, uint16, int16, int32 or int64, got \"", name, "\""));
}

absl::Status CheckNarrowestDType(const TensorView& tensor) {
  int64_t largest = 0;
  for (int64_t i = 0; i < tensor.rows * tensor.row_elements(); ++i) {
    const int64_t id = ElementAt(tensor.dtype, tensor.elements.data(), i);
    if (id < 0) return Invalid(Reason::kIdRange, "payload", absl::StrCat("expert id ", id, " is below 0"));
    largest = std::max(largest, id);
  }
  const DType expected = largest <= UINT8_MAX ? DType::kU8 : largest <= INT16_MAX ? DType::kI16 : DType::kI32;
  if (tensor.dtype == expected) return absl::OkStatus();
  return Invalid(Reason::kDType, "append.tensor.dtype",
                 absl::StrCat("must be the smallest one for ids up to ", largest));
}

absl::StatusOr<ObjectForm> ObjectFormFromJson(ObjectDialect dialect, absl::string_view text) {
  auto value = ParseJson(text, "append.tensor");
  if (!value.ok()) return value.status();
  if (value->is_array()) *value = json{{"shape", *value}};
  if (!value->is_object()) return Invalid(Reason::kField, "append.tensor", "must be an object");
  if (dialect == ObjectDialect::kMsSwift && value->value("__ndarray__", json()) != true) {
    return Invalid(Reason::kField, "append.tensor.__ndarray__", "must be true");
  }
  auto shape = ShapeFrom(value->value("shape", json()), dialect == ObjectDialect::kSgLang ? 2 : 3);
  if (!shape.ok()) return shape.status();
  const auto dtype = DTypeOf(dialect, *value);
  if (!dtype.ok()) return dtype.status();
  ObjectForm form;
  form.tensor = {.encoding = Encoding::kBase64, .dtype = *dtype, .shape = *std::move(shape)};
  const json start = value->value("start", json());
  if (!start.is_null()) {
    if (!start.is_number_integer() || start < 0 || start > kMaxRows) {
      return Invalid(Reason::kField, "append.row_start",
                     absl::StrCat("must be the number of a row, got ", DumpJson(start)));
    }
    form.start = start.get<int64_t>();
  }
  return form;
}

absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body) {
  std::unique_ptr<Indexer> indexer;
  simdjson::error_code error =
      simdjson::get_active_implementation()->create_dom_parser_implementation(body.size(), kMaxNesting, indexer);
  if (!error) error = indexer->stage1(body.data(), body.size(), simdjson::stage1_mode::regular);
  if (error) return Malformed(simdjson::error_message(error));
  Walker walker(body, {indexer->structural_indexes.get(), indexer->n_structural_indexes});
  if (!walker.Root()) return Malformed("must be a JSON object or list");
  return walker.take();
}

}  // namespace wire
}  // namespace routing_replay
