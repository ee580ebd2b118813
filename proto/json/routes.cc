#include "proto/json/routes.h"

#include <simdjson.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

using Indexer = simdjson::internal::dom_parser_implementation;

constexpr const char* kTargets[] = {"routed_experts", "prompt_routed_experts"};
constexpr const char* kPlaces[] = {"choices", "meta_info", "sglext", "sgl_ext"};
constexpr const char* kData[] = {"data"};
constexpr size_t kMaxDepth = 16;      // Values nested more deeply are not searched for routes.
constexpr size_t kMaxNesting = 1024;  // Initial nesting capacity of the parser; not a limit.

absl::Status Malformed(absl::string_view what) { return Invalid(Reason::kEncoding, "body", what); }

// Walks the JSON tokens of the body. simdjson's first stage finds where tokens begin: brackets, colons, commas, and the
// first characters of strings, numbers and words. Only that stage reads every byte, with the fastest instructions of
// this CPU, and it never reads past the end of the body.
class Walker {
 public:
  Walker(absl::Span<const uint8_t> body, absl::Span<const uint32_t> tokens)
      : body_(reinterpret_cast<const char*>(body.data()), body.size()), tokens_(tokens) {}

  // False if the body is malformed.
  bool Root() { return (Kind() == '{' || Kind() == '[') && Place() && next_ == tokens_.size(); }
  std::vector<RouteText> take() { return std::move(found_); }

 private:
  // The first character of the current token; 0 after the last one.
  char Kind() const { return next_ < tokens_.size() ? body_[tokens_[next_]] : '\0'; }
  bool Take(char kind) {
    if (Kind() != kind) return false;
    ++next_;
    return true;
  }

  // The characters between the quotes of the current string.
  std::optional<absl::string_view> Text() const {
    if (Kind() != '"') return std::nullopt;
    const size_t begin = tokens_[next_];
    const size_t end = next_ + 1 < tokens_.size() ? tokens_[next_ + 1] : body_.size();
    const size_t quote = body_.substr(0, end).rfind('"');
    if (quote <= begin) return std::nullopt;
    return body_.substr(begin + 1, quote - begin - 1);
  }

  // Skips a value, looking only at its brackets.
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

  // Handles a value in which routes may be: a response, a choice, an extension such as "meta_info", or a list of these.
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

absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body) {
  std::unique_ptr<Indexer> indexer;
  simdjson::error_code error =
      simdjson::get_active_implementation()->create_dom_parser_implementation(body.size(), kMaxNesting, indexer);
  if (!error) error = indexer->stage1(body.data(), body.size(), simdjson::stage1_mode::regular);
  if (error) return Malformed(simdjson::error_message(error));
  Walker walker(body, {indexer->structural_indexes.get(), indexer->n_structural_indexes});
  if (!walker.Root()) return Malformed("must be a complete JSON object or list");
  return walker.take();
}

}  // namespace wire
}  // namespace routing_replay
