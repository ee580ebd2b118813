#include "server/store/store_rules.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

absl::Status Mismatch(absl::string_view field, absl::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, why,
                   {.reason = Reason::kGeometryMismatch, .field = std::string(field)});
}

absl::Status CheckGeometry(const RunInfo& run, const Geometry& geometry) {
  if (geometry == *run.geometry) return absl::OkStatus();
  return Mismatch("geometry", absl::StrCat("run \"", run.run, "\" has ", run.geometry->DebugString(), ", not ",
                                           geometry.DebugString()));
}

std::string Hex(uint64_t number) { return absl::StrCat(absl::Hex(number, absl::kZeroPad16)); }

std::string Describe(const RunOptions& options) {
  return absl::StrCat("ttl ", std::chrono::duration_cast<std::chrono::milliseconds>(options.ttl).count(), " ms, ",
                      options.strict ? "strict" : "not strict", ", block_rows ", options.block_rows, ", codec ",
                      CodecName(options.codec), options.durability ? ", durability " : "",
                      options.durability ? DurabilityName(*options.durability) : "");
}

// `stated`: the client's fingerprint; 0 if it named one server. `makes`: the client gave a geometry, so it may create
// runs. With neither a geometry nor a fingerprint it may look at this server's part.
absl::Status CheckServers(const RunInfo& run, uint64_t stated, bool makes) {
  const uint64_t known = run.options.shard_fingerprint;
  if (stated == known || (stated == 0 && !makes)) return absl::OkStatus();
  return Mismatch(
      "shard_fingerprint",
      absl::StrCat("run \"", run.run, "\" is spread over other servers than this client's endpoint names; ",
                   "name all the servers that it was made with, by the same names (shard:a:7400,b:7400), or ",
                   "make another run (fingerprint of the run's server list: ", Hex(known),
                   ", of this client's: ", Hex(stated), "; 0 is one server)"));
}

absl::Status CheckCoverage(const AppendHeader& header, absl::Span<const Block> blocks) {
  std::vector<RowRange> covered;
  for (const Block& block : blocks) {
    if (block.rows.empty() || (!covered.empty() && block.rows.begin < covered.back().end)) {
      return Invalid(Reason::kRowCount, "append.blocks",
                     absl::StrCat(ToString(block.rows), " is empty or not ascending"));
    }
    AppendMerged(covered, block.rows);
  }
  if (covered == Subtract(header.rows, header.unrecorded)) return absl::OkStatus();
  return Invalid(Reason::kRowCount, "append.blocks",
                 absl::StrCat("the blocks must hold exactly the recorded rows of ", ToString(header.rows),
                              "; they hold ", TotalRows(covered), " rows"));
}

constexpr int64_t kPageBytes = 1 << 20;

}  // namespace

absl::Status CheckRunOptions(const RunOptions& options) {
  const int32_t rows = options.block_rows;
  if (rows < kMinBlockRows || rows > kMaxBlockRows || (rows & (rows - 1)) != 0) {
    return Invalid("options.block_rows",
                   absl::StrCat("must be a power of two in [", kMinBlockRows, ", ", kMaxBlockRows, "], got ", rows));
  }
  if (options.ttl <= Clock::Duration::zero() || options.ttl > kMaxTtl) {
    return Invalid("options.ttl_ms", "must be above 0 and at most 30 days");
  }
  return absl::OkStatus();
}

absl::StatusOr<RunOptions> OptionsInForce(const std::optional<RunOptions>& asked, const RunOptions& defaults,
                                          const DurabilityLevels& levels) {
  RunOptions options = asked.value_or(defaults);
  if (!options.durability) options.durability = levels.by_default;
  if (*options.durability > levels.best) {
    return Invalid("options.durability",
                   absl::StrCat(DurabilityName(*options.durability),
                                " is not possible with this server's store; its highest durability is ",
                                DurabilityName(levels.best)));
  }
  return options;
}

absl::Status CheckJoin(const RunInfo& run, const Geometry* geometry, const std::optional<RunOptions>& options) {
  if (geometry != nullptr) {
    RR_RETURN_IF_ERROR(CheckGeometry(run, *geometry));
  }
  absl::Status servers = CheckServers(run, options ? options->shard_fingerprint : 0, geometry != nullptr);
  if (!servers.ok() || !options) return servers;
  RunOptions meant = *options;
  if (!meant.durability) meant.durability = run.options.durability;
  meant.shard_fingerprint = run.options.shard_fingerprint;
  if (meant == run.options) return absl::OkStatus();
  return Mismatch("options",
                  absl::StrCat("run \"", run.run, "\" has ", Describe(run.options), ", not ", Describe(*options)));
}

absl::Status CheckBlocks(const RunInfo& run, const AppendCommand& command) {
  if (command.geometry != nullptr) {
    RR_RETURN_IF_ERROR(CheckGeometry(run, *command.geometry));
  }
  for (const Block& block : command.blocks) {
    absl::Status shape = CheckShape(*run.geometry, block.view(), run.options.block_rows);
    if (!shape.ok()) return shape;
  }
  return absl::OkStatus();
}

absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks) {
  RR_RETURN_IF_ERROR(CheckAppendHeader(header));
  return CheckCoverage(header, blocks);
}

int64_t StateBytes(const SampleState& state) {
  size_t bytes = sizeof(state) + state.sample.size() + state.engine.size() + state.unrecorded.size() * sizeof(RowRange);
  for (const WeightSpan& span : state.weights) bytes += sizeof(span) + span.label.size();
  return static_cast<int64_t>(bytes);
}

bool PageBuilder::Add(SampleState state) {
  bytes_ += StateBytes(state);
  if (!page_.samples.empty() && (page_.samples.size() == limit_ || bytes_ > kPageBytes)) {
    page_.next_token = page_.samples.back().sample;
    return false;
  }
  page_.samples.push_back(std::move(state));
  return true;
}

absl::Status NoRunError(absl::string_view run) {
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no run \"", run, "\""),
                   {.reason = Reason::kNoRun, .field = "run"});
}

absl::Status NoSampleError(absl::string_view sample) {
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("there is no sample \"", sample, "\""),
                   {.reason = Reason::kNoSample, .sample = std::string(sample)});
}

absl::Status HandleCollisionError(absl::string_view sample, absl::string_view other) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("sample \"", sample, "\" has the same handle as sample \"", other,
                                "\" of this run; rename one of them"),
                   {.reason = Reason::kHandleCollision, .sample = std::string(sample)});
}

}  // namespace routing_replay::server
