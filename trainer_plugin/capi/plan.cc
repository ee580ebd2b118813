// Errors, bytes, plans.
#include <utility>

#include "routing_replay/wire/checksum.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;        // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;  // NOLINT(build/namespaces)

int32_t rrt_abi_version(void) { return RRT_ABI_VERSION; }

int32_t rrt_error_code(const rrt_error* error) { return error->code(); }
const char* rrt_error_json(const rrt_error* error) { return error->json(); }
void rrt_error_free(rrt_error* error) { delete error; }

const void* rrt_bytes_data(const rrt_bytes* bytes) { return bytes->data(); }
size_t rrt_bytes_size(const rrt_bytes* bytes) { return bytes->size(); }
void rrt_bytes_free(rrt_bytes* bytes) { delete bytes; }

uint32_t rrt_token_check(uint32_t check, const uint32_t* tokens, size_t count) {
  return TokenCheckExtend(check, Bytes(tokens, count * sizeof(uint32_t)));
}

rrt_error* rrt_plan_new(const char* json, size_t size, int32_t ep_size, rrt_plan** plan) {
  return Guard([&]() -> absl::Status {
    auto described = trainer::DescribedPlanFromJson(Text(json, size));
    if (!described.ok()) return described.status();
    trainer::BufferLayout::Options options{.rows = described->plan.row_map.rows, .ep_size = ep_size};
    for (const trainer::OwnedLayer& layer : described->plan.layers) options.ordinals.push_back(layer.ordinal);
    auto layout = trainer::BufferLayout::Create(described->geometry, options);
    if (!layout.ok()) return layout.status();
    *plan = new rrt_plan{*std::move(described), *std::move(layout)};
    return absl::OkStatus();
  });
}

void rrt_plan_free(rrt_plan* plan) { delete plan; }

rrt_error* rrt_plan_json(const rrt_plan* plan, rrt_bytes** json) {
  return Guard([&] { return Give(ToJson(plan->described), json); });
}

rrt_error* rrt_plan_buffer(const rrt_plan* plan, rrt_bytes** json) {
  return Guard([&] {
    const trainer::BufferLayout& layout = plan->layout;
    nlohmann::json layers = nlohmann::json::array();
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      const LayerRouting& layer = layout.layer(slot);
      layers.push_back({{"layer", layer.layer_id},
                        {"offset", layout.slab_offset(slot)},
                        {"num_experts", layer.num_experts},
                        {"top_k", layer.top_k},
                        {"id_bytes", layer.id_bytes()}});
    }
    return Give(DumpJson({{"bytes", layout.bytes()}, {"rows", layout.rows()}, {"layers", std::move(layers)}}), json);
  });
}
