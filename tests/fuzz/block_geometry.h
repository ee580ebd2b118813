// The two geometries of the block fuzz target: one with equal layers, one that mixes one-byte and two-byte ids.
#ifndef TESTS_FUZZ_BLOCK_GEOMETRY_H_
#define TESTS_FUZZ_BLOCK_GEOMETRY_H_

#include <cstdint>

#include "routing_replay/wire/geometry.h"

inline routing_replay::Geometry MakeBlockGeometry(uint8_t choice) {
  using routing_replay::Geometry;
  if (choice % 2 == 0) return Geometry::Uniform(2, 60, 4);
  return *Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {256, 300}, .top_k = {1, 3}});
}

#endif  // TESTS_FUZZ_BLOCK_GEOMETRY_H_
