// Does what it is told with the C++ client, so that another client that is told the same can be compared with it.
//
// usage: client_operations ENDPOINT RUN
// One JSON object per line of standard input, and its result as one line of standard output:
//   {"do": "open", "geometry": {…}, "strict": false}
//   {"do": "append" | "put", "append": {…}, "tensor": {…} | null, "rows": 0, "tokens": […], "payload": "hex"}
//   {"do": "seal" | "truncate" | "stat" | "list" | "read" | "release" | "release_groups" | "drop", …}
// The forms inside are those of capi.h. A result is {"error": {…}} or what the operation gave.
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "client/capi/values.h"
#include "proto/json/geometry_json.h"
#include "proto/json/json_object.h"
#include "proto/json/status_json.h"
#include "proto/json/wire_json.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

using nlohmann::json;
constexpr std::chrono::seconds kTimeout(60);

json Error(const absl::Status& status) { return {{"error", StatusToJson(status)}}; }

json ToJson(const SampleState& state) {
  json weights = json::array();
  for (const WeightSpan& span : state.weights) {
    weights.push_back({span.rows.begin, span.rows.end, span.version, span.label});
  }
  json provenance = json::array();
  for (const Provenance& from : state.provenance) {
    provenance.push_back(
        {from.rows.begin, from.rows.end, from.weight_version, from.weight_label, from.engine, from.appends});
  }
  json out = {{"sample", state.sample},
              {"handle", state.handle},
              {"producer", ProducerName(state.producer)},
              {"group", state.group},
              {"committed_rows", state.committed_rows},
              {"revision", state.revision},
              {"content_id", state.content_id},
              {"awaits_checkpoint", state.awaits_checkpoint},
              {"unrecorded", RangesToJson(state.unrecorded)},
              {"weights", std::move(weights)},
              {"provenance", std::move(provenance)},
              {"stored_bytes", state.stored_bytes},
              {"engine", state.engine}};
  if (state.num_tokens) out["num_tokens"] = *state.num_tokens;
  if (state.token_check) out["token_check"] = {state.token_check->rows, state.token_check->crc32c};
  return out;
}

json ToJson(const SampleRows& sample) {
  json layers = json::array();
  for (const std::vector<uint16_t>& ids : sample.layers) {
    const auto* bytes = reinterpret_cast<const char*>(ids.data());
    layers.push_back(absl::BytesToHexString({bytes, ids.size() * sizeof(uint16_t)}));
  }
  json out = capi::ToJson(SamplePlanes{.record = sample.record, .rows = sample.rows});
  out["ids"] = std::move(layers);
  return out;
}

json ToJson(const ReleaseOutcome& outcome) {
  return {{"samples", outcome.samples}, {"bytes", outcome.bytes}, {"kept", outcome.kept}};
}

template <typename T>
json Result(const absl::StatusOr<T>& result) {
  return result.ok() ? ToJson(*result) : Error(result.status());
}

template <typename T>
json Results(const absl::StatusOr<std::vector<T>>& results) {
  if (!results.ok()) return Error(results.status());
  json out = json::array();
  for (const T& result : *results) out.push_back(ToJson(result));
  return out;
}

Producer ProducerOf(const json& operation) {
  return operation.value("producer", "rollout") == "trainer" ? Producer::kTrainer : Producer::kRollout;
}

class Operations {
 public:
  Operations(std::unique_ptr<Client> client, std::string run) : client_(std::move(client)), name_(std::move(run)) {}

  json Do(const json& operation) {
    const std::string what = operation.at("do");
    if (what == "open") return Open(operation);
    if (what == "append" || what == "put") return Append(operation, what == "put");
    if (what == "read") return Read(operation);
    const std::string sample = operation.value("sample", "");
    if (what == "seal") {
      return Result(run_->Seal(sample, ProducerOf(operation), operation.at("num_tokens"), operation.at("revision")));
    }
    if (what == "truncate") {
      std::optional<int64_t> expected;
      if (operation.contains("expected_revision")) expected = operation.at("expected_revision");
      return Result(run_->Truncate(sample, ProducerOf(operation), operation.at("rows"), expected));
    }
    if (what == "stat") return Result(run_->Stat(sample, ProducerOf(operation)));
    if (what == "list") return Results(run_->List({}, ProducerOf(operation)));
    const ReleaseOptions release{.mode = operation.value("keep_until_checkpoint", false) ? ReleaseMode::kAfterCheckpoint
                                                                                         : ReleaseMode::kNow};
    if (what == "release") {
      return Result(run_->Release(operation.at("samples").get<std::vector<std::string>>(), release));
    }
    if (what == "release_groups") {
      return Result(run_->ReleaseGroups(operation.at("begin"), operation.at("end"), release));
    }
    return Result(run_->Drop());
  }

 private:
  json Open(const json& operation) {
    const auto geometry = capi::GeometryFrom(DumpJson(operation.at("geometry")));
    if (!geometry.ok()) return Error(geometry.status());
    auto run = client_->OpenRun(name_, *geometry, {.strict = operation.at("strict")});
    if (!run.ok()) return Error(run.status());
    run_ = *std::move(run);
    appender_ =
        run_->NewAppender({.on_outcome = [this](const AppendOutcome& outcome) { outcomes_.push_back(outcome); }});
    return GeometryToJson(run_->geometry());
  }

  json Append(const json& operation, bool put) {
    auto options = capi::AppendOptionsFrom(DumpJson(operation.at("append")));
    if (!options.ok()) return Error(options.status());
    const auto tokens = operation.at("tokens").get<std::vector<uint32_t>>();
    options->token_ids = tokens;
    if (operation.at("tensor").is_null()) {
      return Queued(appender_->AppendUnrecorded(*options, operation.at("rows")));
    }
    const auto tensor = TensorFromJson(DumpJson(operation.at("tensor")));
    if (!tensor.ok()) return Error(WithSample(tensor.status(), options->sample));
    const std::string payload = absl::HexStringToBytes(operation.at("payload").get<std::string>());
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(payload.data()), payload.size());
    if (!put) return Queued(appender_->Append(*options, *tensor, bytes));
    const auto outcome = run_->Put(*options, *tensor, bytes);
    return outcome.ok() ? capi::ToJson(*outcome) : Error(outcome.status());
  }

  json Queued(const absl::Status& status) {
    if (!status.ok()) return Error(status);
    appender_->Flush(kTimeout).IgnoreError();  // The outcome says it.
    json outcome = capi::ToJson(outcomes_.back());
    outcomes_.clear();
    return outcome;
  }

  json Read(const json& operation) {
    auto request = capi::ReadRequestFrom(DumpJson(operation.at("request")));
    if (!request.ok()) return Error(request.status());
    return Results(run_->ReadRows(*std::move(request), kTimeout));
  }

  const std::unique_ptr<Client> client_;
  const std::string name_;
  std::vector<AppendOutcome> outcomes_;  // Written by the appender's thread before Flush returns.
  std::shared_ptr<Run> run_;
  std::unique_ptr<Appender> appender_;
};

int Main(const char* endpoint, const char* run) {
  auto client = Client::Connect({.endpoint = endpoint});
  if (!client.ok()) return 1;
  Operations operations(*std::move(client), run);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << DumpJson(operations.Do(json::parse(line))) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace routing_replay::client

int main(int argc, char** argv) { return argc == 3 ? routing_replay::client::Main(argv[1], argv[2]) : 2; }
