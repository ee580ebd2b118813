// The geometry of a model whose first layers have no router.
#ifndef TESTS_SUPPORT_DENSE_PREFIX_H_
#define TESTS_SUPPORT_DENSE_PREFIX_H_

#include <cstdint>

#include "routing_replay/wire/geometry.h"

namespace routing_replay::testing {

inline Geometry WithDensePrefix(int32_t layers, int32_t dense, int32_t experts, int32_t top_k) {
  Geometry::Options options{.num_layers = layers, .num_experts = {experts}, .top_k = {top_k}};
  for (int32_t layer = dense; layer < layers; ++layer) options.moe_layer_ids.push_back(layer);
  return *Geometry::Create(options);
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_DENSE_PREFIX_H_
