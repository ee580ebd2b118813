// Texts that wrappers of engines put around ids: what they hold, found without a copy.
#ifndef PROTO_WIRE_PAYLOAD_TEXT_FORM_H_
#define PROTO_WIRE_PAYLOAD_TEXT_FORM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/buffer.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

// A payload inside a text.
struct TextForm {
  TensorDescription tensor;
  absl::Span<const uint8_t> data;  // Of the text that was opened.
};

// NeMo-RL's "nrlre1:<dtype>:<rows>x<layers>x<K>:<base64>", dtype int8, int16 or int32. INVALID_ARGUMENT, field
// "payload": kEncoding for another text, kDType, kShape for axes that are not three plain decimal numbers. The base64
// is not looked at.
absl::StatusOr<TextForm> OpenNrlre1(absl::Span<const uint8_t> text);

// NumPy's name of an integer type: "uint8", "int8", "uint16", "int16", "int32", "int64". INVALID_ARGUMENT (kDType,
// field "append.tensor.dtype").
absl::StatusOr<DType> DTypeFromName(absl::string_view name);

// SkyRL's wire has one dtype for given ids: uint8 up to 255, int16 up to 32767, else int32, and none below 0.
// INVALID_ARGUMENT: kIdRange for negative ids, kDType for another dtype.
absl::Status CheckNarrowestDType(const TensorView& tensor);

// Base85 as Python's base64.b85encode writes it. INVALID_ARGUMENT (kEncoding, field "payload") saying where it is
// malformed.
absl::StatusOr<Buffer> DecodeBase85(absl::Span<const uint8_t> text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TEXT_FORM_H_
