#include "proto/json/routes_in_json.h"

#include <simdjson.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr const char* kTargets[] = {"routed_experts", "prompt_routed_experts"};
constexpr const char* kPlaces[] = {"choices", "meta_info", "sglext", "sgl_ext", "nvext"};

absl::Status Malformed(absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("body: ", what),
                   {.reason = Reason::kEncoding, .field = "body"});
}

// Only structure is asked of the library: it finds that in bounds, while its readers of texts and numbers may look past
// the end of the body.
class Finder {
 public:
  explicit Finder(absl::Span<const uint8_t> body)
      : begin_(reinterpret_cast<const char*>(body.data())), end_(begin_ + body.size()) {}

  simdjson::error_code Root(ondemand::document& document) {
    ondemand::json_type type;
    if (auto error = document.type().get(type)) return error;
    if (type == ondemand::json_type::object) {
      ondemand::object object;
      if (auto error = document.get_object().get(object)) return error;
      return Fields(object);
    }
    ondemand::array array;
    if (auto error = document.get_array().get(array)) return error;
    return Items(array);
  }

  std::vector<RouteText> take() { return std::move(found_); }

 private:
  // The one of `names` that the key is, or null.
  template <size_t N>
  const char* Known(const char* key, const char* const (&names)[N]) const {
    for (const char* name : names) {
      const size_t size = std::strlen(name);
      if (static_cast<size_t>(end_ - key) > size && std::memcmp(key, name, size) == 0 && key[size] == '"') return name;
    }
    return nullptr;
  }

  simdjson::error_code Fields(ondemand::object& object) {
    for (auto result : object) {
      ondemand::field field;
      if (auto error = std::move(result).get(field)) return error;
      const char* key = field.key().raw();
      if (const char* target = Known(key, kTargets)) {
        path_.emplace_back(std::string(target));
        if (auto error = Routes(field.value(), true)) return error;
        path_.pop_back();
      } else if (const char* place = Known(key, kPlaces)) {
        path_.emplace_back(std::string(place));
        if (auto error = Place(field.value())) return error;
        path_.pop_back();
      }
    }
    return simdjson::SUCCESS;
  }

  simdjson::error_code Items(ondemand::array& array) {
    size_t index = 0;
    for (auto result : array) {
      ondemand::value item;
      if (auto error = std::move(result).get(item)) return error;
      path_.emplace_back(index++);
      if (auto error = Place(item)) return error;
      path_.pop_back();
    }
    return simdjson::SUCCESS;
  }

  // A list of responses or choices, or one of them, or an extension.
  simdjson::error_code Place(ondemand::value value) {
    if (path_.size() > kMaxDepth) return simdjson::SUCCESS;
    ondemand::json_type type;
    if (auto error = value.type().get(type)) return error;
    if (type == ondemand::json_type::object) {
      ondemand::object object;
      if (auto error = value.get_object().get(object)) return error;
      return Fields(object);
    }
    if (type != ondemand::json_type::array) return simdjson::SUCCESS;
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return error;
    return Items(array);
  }

  simdjson::error_code Routes(ondemand::value value, bool outermost) {
    ondemand::json_type type;
    if (auto error = value.type().get(type)) return error;
    if (type == ondemand::json_type::string) return Keep(value.raw_json_token());
    if (!outermost) return simdjson::SUCCESS;
    if (type == ondemand::json_type::array) return RouteItems(value);
    if (type == ondemand::json_type::object) return RouteObject(value);
    return simdjson::SUCCESS;
  }

  simdjson::error_code RouteItems(ondemand::value value) {
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return error;
    size_t index = 0;
    for (auto result : array) {
      ondemand::value item;
      if (auto error = std::move(result).get(item)) return error;
      path_.emplace_back(index++);
      if (auto error = Routes(item, false)) return error;
      path_.pop_back();
    }
    return simdjson::SUCCESS;
  }

  simdjson::error_code RouteObject(ondemand::value value) {
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return error;
    for (auto result : object) {
      ondemand::field field;
      if (auto error = std::move(result).get(field)) return error;
      static constexpr const char* kData[] = {"data"};
      if (Known(field.key().raw(), kData) == nullptr) continue;
      path_.emplace_back(std::string("data"));
      if (auto error = Routes(field.value(), false)) return error;
      path_.pop_back();
    }
    return simdjson::SUCCESS;
  }

  // `token`: from the opening quote to the next structural character.
  simdjson::error_code Keep(std::string_view token) {
    while (!token.empty() && token.back() != '"') token.remove_suffix(1);
    if (token.size() < 2) return simdjson::STRING_ERROR;
    token = token.substr(1, token.size() - 2);
    if (std::memchr(token.data(), '\\', token.size()) != nullptr) return simdjson::SUCCESS;
    found_.push_back({path_, static_cast<size_t>(token.data() - begin_), token.size()});
    return simdjson::SUCCESS;
  }

  static constexpr size_t kMaxDepth = 16;

  const char* const begin_;
  const char* const end_;
  std::vector<std::variant<std::string, size_t>> path_;
  std::vector<RouteText> found_;
};

}  // namespace

absl::StatusOr<std::vector<RouteText>> FindRoutes(absl::Span<const uint8_t> body) {
  ondemand::parser parser;
  ondemand::document document;
  const auto* text = reinterpret_cast<const char*>(body.data());
  // The padding that is claimed here is for readers of texts and numbers, which are not used.
  simdjson::error_code error =
      parser.iterate(text, body.size(), body.size() + simdjson::SIMDJSON_PADDING).get(document);
  Finder finder(body);
  if (!error) error = finder.Root(document);
  if (error) return Malformed(simdjson::error_message(error));
  return finder.take();
}

}  // namespace routing_replay
