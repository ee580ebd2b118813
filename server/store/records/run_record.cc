#include "server/store/records/run_record.h"

#include <chrono>
#include <memory>
#include <utility>

#include "proto/convert/convert.h"
#include "server/store/records/framed_record.h"
#include "server/store/records/run_record.pb.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

std::string EncodeRun(const RunInfo& run) {
  store::v1::RunRecord record;
  record.set_run(run.run);
  record.set_geometry(ToProto(*run.geometry).SerializeAsString());
  record.set_ttl_ms(std::chrono::duration_cast<std::chrono::milliseconds>(run.options.ttl).count());
  record.set_strict(run.options.strict);
  record.set_block_rows(run.options.block_rows);
  record.set_codec(static_cast<int32_t>(run.options.codec));
  record.set_durability(ToProto(run.options.durability));
  record.set_shard_fingerprint(run.options.shard_fingerprint);
  return FrameRecord(record);
}

absl::StatusOr<RunInfo> DecodeRun(absl::string_view bytes) {
  store::v1::RunRecord record;
  if (absl::Status status = UnframeRecord(bytes, record); !status.ok()) return status;
  v1::RoutingGeometry said;
  if (!said.ParseFromString(record.geometry())) return DamagedRecord("a geometry cannot be parsed");
  absl::StatusOr<Geometry> geometry = FromProto(said);
  if (!geometry.ok()) return DamagedRecord(geometry.status().message());
  RunInfo run{.run = record.run(), .geometry = std::make_shared<const Geometry>(*std::move(geometry))};
  const auto durability = FromProto(static_cast<v1::Durability>(record.durability()), "durability");
  if (!durability.ok() || !durability->has_value()) return DamagedRecord("a run's durability is unknown");
  run.options = {.ttl = std::chrono::milliseconds(record.ttl_ms()),
                 .strict = record.strict(),
                 .block_rows = record.block_rows(),
                 .codec = static_cast<Codec>(record.codec()),
                 .durability = *durability,
                 .shard_fingerprint = record.shard_fingerprint()};
  if (absl::Status status = CheckRunOptions(run.options); !status.ok()) return DamagedRecord(status.message());
  return run;
}

}  // namespace routing_replay::server
