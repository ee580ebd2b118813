// What the .npy file of a sample is an array of.
#ifndef PROTO_EXPORTED_NPY_SHAPE_H_
#define PROTO_EXPORTED_NPY_SHAPE_H_

#include <cstdint>
#include <vector>

#include "proto/exported/exported_run.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

inline DType NpyDType(const Geometry& geometry) { return geometry.max_id_bytes() == 1 ? DType::kU8 : DType::kU16; }

// [recorded rows][MoE layers][K].
inline std::vector<int64_t> NpyShape(const Geometry& geometry, const ExportedSample& sample) {
  return {sample.recorded_rows(), geometry.num_moe_layers(), geometry.max_top_k()};
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_NPY_SHAPE_H_
