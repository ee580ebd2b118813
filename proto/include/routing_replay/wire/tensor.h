// Describes a tensor of expert ids in the form that an engine returns: the C++ form of TensorPayload in append.proto.
#ifndef ROUTING_REPLAY_WIRE_TENSOR_H_
#define ROUTING_REPLAY_WIRE_TENSOR_H_

#include <cstdint>
#include <vector>

namespace routing_replay {

// Numbers of the four enums are those of TensorPayload in append.proto.
enum class Encoding : uint8_t { kRaw = 1, kNpy = 2, kBase64 = 3, kBase64Npy = 4 };
enum class Compression : uint8_t { kNone = 1, kZstd = 2 };
enum class DType : uint8_t { kUnspecified = 0, kU8 = 1, kI8 = 2, kU16 = 3, kI16 = 4, kI32 = 5, kI64 = 6 };
enum class LayerBasis : uint8_t { kUnspecified = 0, kAllLayers = 1, kMoeLayers = 2, kExplicit = 3 };

// Describes a payload; meanings and defaults as in append.proto.
struct TensorDescription {
  Encoding encoding = Encoding::kRaw;
  Compression compression = Compression::kNone;
  int64_t raw_size = 0;  // After decompression; required with kZstd.
  DType dtype = DType::kUnspecified;
  std::vector<int64_t> shape;  // [rows, layers, K]; may be empty if a .npy header states it.
  LayerBasis layer_basis = LayerBasis::kUnspecified;
  std::vector<int32_t> layer_ids;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_TENSOR_H_
