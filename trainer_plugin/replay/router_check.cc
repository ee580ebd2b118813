#include "trainer_plugin/replay/router_check.h"

#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/replay/live_choice.h"

namespace routing_replay::trainer {
namespace {

static_assert(kMaxSlots == kMaxTopK, "per-row scratch must hold every row that the wire carries");

absl::Status Refuse(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("router.", field, ": ", what),
                   {.reason = reason, .field = absl::StrCat("router.", field)});
}

absl::Status CheckInRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(Reason::kField, field, absl::StrCat(value, " is not in ", low, " … ", high));
}

// A tensor of `size` elements must be [rows][width].
absl::Status CheckSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  if (size % width == 0 && size / width == rows) return absl::OkStatus();
  return Refuse(Reason::kShape, field, absl::StrCat(size, " elements are not ", rows, " rows of ", width));
}

absl::Status CheckOptionalSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  return size == 0 ? absl::OkStatus() : CheckSize(field, size, rows, width);
}

absl::Status FirstError(std::initializer_list<absl::Status> statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Of compact ids.
uint64_t RowBytes(const RouterConfig& config) { return static_cast<uint64_t>(config.top_k) * IdBytes(config); }

absl::Status CheckGroups(const RouterConfig& config) {
  if (auto s = CheckInRange("num_groups", config.num_groups, 1, std::min(kMaxGroups, config.num_experts)); !s.ok()) {
    return s;
  }
  const int32_t max_chosen = std::min(config.num_groups, config.top_k);
  if (auto s = CheckInRange("group_topk", config.group_topk, 1, max_chosen); !s.ok()) return s;
  if (config.num_experts % config.num_groups != 0) {
    return Refuse(Reason::kField, "num_groups", absl::StrCat("does not divide ", config.num_experts, " experts"));
  }
  const int32_t group_size = config.num_experts / config.num_groups;
  if (config.top_k > config.group_topk * group_size) {
    return Refuse(Reason::kField, "group_topk",
                  absl::StrCat(config.group_topk, " groups of ", group_size, " hold fewer than K = ", config.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

int32_t IdBytes(const RouterConfig& config) { return LayerRouting{.num_experts = config.num_experts}.id_bytes(); }

absl::Status CheckRouterConfig(const RouterConfig& config) {
  if (auto s = CheckInRange("num_experts", config.num_experts, 1, kMaxExperts); !s.ok()) return s;
  if (auto s = CheckInRange("top_k", config.top_k, 1, std::min(kMaxTopK, config.num_experts)); !s.ok()) return s;
  if (config.score_function > ScoreFunction::kSqrtSoftplus) {
    return Refuse(Reason::kField, "score_function", "is none of softmax, sigmoid, sqrtsoftplus");
  }
  if (config.pre_softmax && config.score_function != ScoreFunction::kSoftmax) {
    return Refuse(Reason::kField, "pre_softmax", "needs the softmax score function");
  }
  if (config.rounding > Rounding::kEachStep) return Refuse(Reason::kField, "rounding", "is none of once, each step");
  if (!std::isfinite(config.scaling_factor)) return Refuse(Reason::kField, "scaling_factor", "is not finite");
  return CheckGroups(config);
}

absl::Status CheckForward(const RouterConfig& config, const ForwardSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t rows = sizes.states, experts = config.num_experts, slots = config.top_k;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckSize("indices", sizes.indices, rows, RowBytes(config)),
      CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts),
      CheckSize("probs", sizes.probs, rows, experts),
      CheckSize("routing_map", sizes.routing_map, rows, experts),
      CheckOptionalSize("compact_probs", sizes.compact_probs, rows, slots),
      CheckOptionalSize("chosen", sizes.chosen, rows, RowBytes(config)),
  });
}

absl::Status CheckBackward(const RouterConfig& config, const BackwardSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts, rows = sizes.logits / experts;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckSize("chosen", sizes.chosen, rows, RowBytes(config)),
      CheckSize("grad_probs", sizes.grad_probs, rows, experts),
      CheckSize("grad_logits", sizes.grad_logits, rows, experts),
  });
}

absl::Status CheckRecord(const RouterConfig& config, const RecordSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts, rows = sizes.logits / experts;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts),
      CheckSize("indices", sizes.indices, rows, RowBytes(config)),
  });
}

absl::Status CheckRecordedIds(const RouterConfig& config, uint64_t ids, uint64_t indices) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t slots = config.top_k, rows = ids / slots;
  return FirstError({CheckSize("ids", ids, rows, slots), CheckSize("indices", indices, rows, RowBytes(config))});
}

absl::Status CheckCompare(const RouterConfig& config, const CompareSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  return FirstError({CheckSize("replayed", sizes.replayed, sizes.states, RowBytes(config)),
                     CheckSize("live", sizes.live, sizes.states, RowBytes(config))});
}

absl::Status CheckCompareLive(const RouterConfig& config, const CompareLiveSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts;
  return FirstError({CheckSize("replayed", sizes.replayed, sizes.states, RowBytes(config)),
                     CheckSize("logits", sizes.logits, sizes.states, experts),
                     CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts)});
}

}  // namespace routing_replay::trainer
