#include "tests/golden/kinds/router_case.h"

#include "tests/golden/kinds/split_of.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::golden {
namespace {

int32_t IdBytes(const trainer::RouterConfig& config) { return config.num_experts <= 256 ? 1 : 2; }

}  // namespace

trainer::RouterConfig RouterOf(const Json& input, trainer::Rounding rounding) {
  const std::string score = input.at("score_function").get<std::string>();
  trainer::RouterConfig config{.score_function = score == "softmax"   ? trainer::ScoreFunction::kSoftmax
                                                 : score == "sigmoid" ? trainer::ScoreFunction::kSigmoid
                                                                      : trainer::ScoreFunction::kSqrtSoftplus,
                               .pre_softmax = input.at("use_pre_softmax").get<bool>(),
                               .num_experts = input.at("num_experts").get<int32_t>(),
                               .top_k = input.at("topk").get<int32_t>(),
                               .rounding = rounding,
                               .num_groups = IntOr(input.value("num_groups", Json()), 1),
                               .group_topk = IntOr(input.value("group_topk", Json()), 1)};
  const Json scaling = input.value("scaling_factor", Json());
  if (!scaling.is_null()) config.scaling_factor = scaling.get<double>();
  return config;
}

std::vector<uint8_t> CompactIds(const trainer::RouterConfig& config, const Json& rows) {
  std::vector<uint8_t> ids(rows.size() * config.top_k * IdBytes(config));
  int64_t slot = 0;
  for (const Json& row : rows) {
    for (const Json& id : row) trainer::StoreId(ids.data(), IdBytes(config), slot++, id.get<uint32_t>());
  }
  return ids;
}

Json Slots(const trainer::RouterConfig& config, const std::vector<uint8_t>& ids) {
  Json lists = Json::array();
  const int64_t count = static_cast<int64_t>(ids.size()) / IdBytes(config);
  for (int64_t slot = 0; slot < count; ++slot) {
    if (slot % config.top_k == 0) lists.push_back(Json::array());
    lists.back().push_back(trainer::LoadId(ids.data(), IdBytes(config), slot));
  }
  return lists;
}

Json Experts(const trainer::RouterConfig& config, const std::vector<uint8_t>& map) {
  Json lists = Json::array();
  for (size_t i = 0; i < map.size(); ++i) {
    if (i % config.num_experts == 0) lists.push_back(Json::array());
    if (map[i]) lists.back().push_back(i % config.num_experts);
  }
  return lists;
}

}  // namespace routing_replay::golden
