#include "proto/wire/model_config/moe_layers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/model_config/invalid_config.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr absl::string_view kFrequency = "moe_layer_freq";
constexpr int32_t kMaxDepth = 16;  // Of parentheses.

// sum = product {"+" product}; product = value {"*" value}; value = number | "[" numbers "]" | "(" sum ")".
class FrequencyParser {
 public:
  // A number, or a list of them.
  struct Value {
    int64_t number = 0;
    std::optional<std::vector<int64_t>> list;
  };

  explicit FrequencyParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Value> Parse() {
    auto value = Sum(0);
    if (value.ok() && Next() != '\0') return Invalid("is not understood");
    return value;
  }

 private:
  absl::Status Invalid(absl::string_view what) const {
    return InvalidConfig(kFrequency, absl::StrCat(what, " at character ", at_, " of \"", text_, "\""));
  }

  // The next character that is no space, '\0' at the end.
  char Next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool Take(char wanted) {
    if (Next() != wanted) return false;
    ++at_;
    return true;
  }

  absl::StatusOr<int64_t> Number() {
    const char first = Next();
    if (first < '0' || first > '9') return Invalid("there is no number");
    int64_t number = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      number = number * 10 + (text_[at_] - '0');
      if (number > kMaxLayers) return Invalid(absl::StrCat("a number is above ", kMaxLayers));
    }
    return number;
  }

  absl::StatusOr<Value> List() {
    std::vector<int64_t> list;
    while (!Take(']')) {
      if (!list.empty() && !Take(',')) return Invalid("a list is not closed");
      if (!list.empty() && Take(']')) break;
      const auto number = Number();
      if (!number.ok()) return number.status();
      list.push_back(*number);
      if (list.size() > kMaxLayers) return Invalid("a list is too long");
    }
    return Value{.number = 0, .list = std::move(list)};
  }

  absl::StatusOr<Value> Single(int32_t depth) {
    if (depth > kMaxDepth) return Invalid("parentheses are too deep");
    if (Take('[')) return List();
    if (Take('(')) {
      auto value = Sum(depth + 1);
      if (value.ok() && !Take(')')) return Invalid("a parenthesis is not closed");
      return value;
    }
    const auto number = Number();
    if (!number.ok()) return number.status();
    return Value{.number = *number, .list = {}};
  }

  // Both numbers, or one of them a list to be repeated.
  absl::Status Multiply(Value& value, const Value& factor) {
    if (value.list.has_value() && factor.list.has_value()) return Invalid("a list times a list");
    if (!value.list.has_value() && !factor.list.has_value()) {
      value.number *= factor.number;
      return value.number > kMaxLayers ? Invalid("a number is too large") : absl::OkStatus();
    }
    const std::vector<int64_t> once = value.list.has_value() ? *value.list : *factor.list;
    const int64_t times = value.list.has_value() ? factor.number : value.number;
    if (static_cast<int64_t>(once.size()) * times > kMaxLayers) return Invalid("a list is too long");
    value.list.emplace();
    for (int64_t i = 0; i < times; ++i) value.list->insert(value.list->end(), once.begin(), once.end());
    return absl::OkStatus();
  }

  absl::Status Add(Value& value, const Value& more) {
    if (value.list.has_value() != more.list.has_value()) return Invalid("a list plus a number");
    if (!value.list.has_value()) {
      value.number += more.number;
      return value.number > kMaxLayers ? Invalid("a number is too large") : absl::OkStatus();
    }
    value.list->insert(value.list->end(), more.list->begin(), more.list->end());
    return value.list->size() > kMaxLayers ? Invalid("a list is too long") : absl::OkStatus();
  }

  absl::StatusOr<Value> Product(int32_t depth) {
    auto value = Single(depth);
    while (value.ok() && Take('*')) {
      const auto factor = Single(depth);
      absl::Status status = factor.ok() ? Multiply(*value, *factor) : factor.status();
      if (!status.ok()) return status;
    }
    return value;
  }

  absl::StatusOr<Value> Sum(int32_t depth) {
    auto value = Product(depth);
    while (value.ok() && Take('+')) {
      const auto more = Product(depth);
      absl::Status status = more.ok() ? Add(*value, *more) : more.status();
      if (!status.ok()) return status;
    }
    return value;
  }

  const absl::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> MoeLayerIds(int64_t num_layers, const MoeLayerRule& rule, absl::string_view key) {
  if (num_layers < 1 || num_layers > kMaxLayers) {
    return InvalidConfig(key, absl::StrCat(num_layers, " layers are not 1 … ", kMaxLayers));
  }
  if (rule.step < 1) return InvalidConfig(key, absl::StrCat("a step of ", rule.step));
  if (rule.moe.has_value() && static_cast<int64_t>(rule.moe->size()) != num_layers) {
    return InvalidConfig(key, absl::StrCat("tells of ", rule.moe->size(), " layers, the model has ", num_layers));
  }
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < num_layers; ++i) {
    if (i < rule.first || i > rule.last || i % rule.step != rule.offset) continue;
    if (rule.moe.has_value() && !(*rule.moe)[i]) continue;
    if (std::find(rule.dense.begin(), rule.dense.end(), i) != rule.dense.end()) continue;
    ids.push_back(i);
  }
  return ids;
}

absl::StatusOr<MoeLayerFrequency> ParseMoeLayerFrequency(absl::string_view text) {
  auto value = FrequencyParser(text).Parse();
  if (!value.ok()) return value.status();
  MoeLayerFrequency frequency;
  if (value->list.has_value()) {
    frequency.flags = *std::move(value->list);
  } else {
    frequency.step = value->number;
  }
  return frequency;
}

absl::StatusOr<std::vector<bool>> HybridMoeFlags(absl::string_view pattern, absl::string_view key) {
  std::vector<bool> flags;
  for (const char symbol : pattern.substr(0, pattern.find('/'))) {
    if (symbol == '|') continue;
    if (absl::string_view("EMGD*+-").find(symbol) == absl::string_view::npos) {
      return InvalidConfig(key, absl::StrCat("'", absl::string_view(&symbol, 1), "' is none of E M G D * + -"));
    }
    flags.push_back(symbol == 'E');
  }
  return flags;
}

}  // namespace wire
}  // namespace routing_replay
