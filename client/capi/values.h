// The JSON forms of capi.h ⇄ C++ values.
#ifndef CLIENT_CAPI_VALUES_H_
#define CLIENT_CAPI_VALUES_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_queue.h"
#include "client/reader/row_planes.h"
#include "client/server_limits.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay::capi {

// What a client knows of its run.
struct RunInfo {
  std::string name;
  Geometry geometry;
  int32_t block_rows = kDefaultBlockRows;
  Codec codec = Codec::kRaw;
  client::ServerLimits limits;

  client::BlockOptions blocks() const {
    return {block_rows, codec, limits.max_message_bytes, limits.max_payload_bytes};
  }
};

// All of them: INVALID_ARGUMENT (kField) naming the field that is missing, unknown or of the wrong kind.
absl::StatusOr<Geometry> GeometryFrom(absl::string_view json);
// `source`: "huggingface" or "megatron".
absl::StatusOr<ModelConfig> ModelConfigFrom(absl::string_view json, absl::string_view source);
absl::StatusOr<RunInfo> RunFrom(absl::string_view json);
// Without token ids.
absl::StatusOr<AppendOptions> AppendOptionsFrom(absl::string_view json);
// [[begin, end, version, label], …]
absl::Status ReadWeights(const nlohmann::json& list, std::vector<WeightSpan>& weights);
absl::StatusOr<ReadRequest> ReadRequestFrom(absl::string_view json);
absl::StatusOr<std::vector<SampleState>> StatesFrom(absl::string_view json);
absl::StatusOr<Codec> CodecFrom(absl::string_view name);

nlohmann::json ToJson(const AppendOutcome& outcome);
nlohmann::json ToJson(const AppenderMetrics& metrics);
nlohmann::json ToJson(const client::SamplePlanes& sample);

}  // namespace routing_replay::capi

#endif  // CLIENT_CAPI_VALUES_H_
