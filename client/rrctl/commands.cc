#include "client/rrctl/commands.h"

#include <fstream>
#include <iterator>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/rrctl/table.h"
#include "proto/wire/payload/npy.h"

namespace routing_replay {
namespace {

constexpr std::chrono::seconds kTimeout(60);

nlohmann::ordered_json Describe(const SampleState& s) {
  nlohmann::ordered_json row = {{"sample", s.sample},
                                {"handle", s.handle},
                                {"producer", ProducerName(s.producer)},
                                {"group", s.group},
                                {"rows", s.committed_rows},
                                {"tokens", nullptr},
                                {"unrecorded", TotalRows(s.unrecorded)},
                                {"revision", s.revision},
                                {"content_id", absl::StrCat(absl::Hex(s.content_id, absl::kZeroPad16))},
                                {"bytes", s.stored_bytes},
                                {"idle_ms", s.idle_ms}};
  if (s.num_tokens) row["tokens"] = *s.num_tokens;
  return row;
}

// What `stat` says beyond `ls`.
nlohmann::ordered_json DescribeFully(const SampleState& s) {
  nlohmann::ordered_json row = Describe(s);
  row["engine"] = s.engine;
  row["weights"] = nlohmann::ordered_json::array();
  for (const WeightSpan& span : s.weights) {
    row["weights"].push_back({{"rows", ToString(span.rows)}, {"version", span.version}, {"label", span.label}});
  }
  row["unrecorded"] = nlohmann::ordered_json::array();
  for (RowRange range : s.unrecorded) row["unrecorded"].push_back(ToString(range));
  return row;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Joins the run, or makes it with the geometry that the options and the file's shape tell.
absl::StatusOr<std::shared_ptr<Run>> OpenRunFor(Client& client, const PutOptions& options, const NpyHeader& header) {
  if (options.num_experts == 0) return client.JoinRun(options.run);
  if (header.shape[1] > kMaxLayers || header.shape[2] > kMaxTopK) {
    return absl::InvalidArgumentError(absl::StrCat("an array of ", header.shape[1], " layers and K ", header.shape[2],
                                                   "; at most ", kMaxLayers, " and ", kMaxTopK));
  }
  const auto layers = static_cast<int32_t>(header.shape[1]);
  Geometry::Options geometry{.num_layers = layers,
                             .moe_layer_ids = options.moe_layers,
                             .num_experts = {options.num_experts},
                             .top_k = {static_cast<int32_t>(header.shape[2])}};
  if (geometry.moe_layer_ids.empty()) {
    geometry.moe_layer_ids.resize(layers);
    std::iota(geometry.moe_layer_ids.begin(), geometry.moe_layer_ids.end(), 0);
  }
  auto made = Geometry::Create(geometry);
  if (!made.ok()) return made.status();
  return client.OpenRun(options.run, *made);
}

}  // namespace

absl::StatusOr<Rows> StatusCommand(Client& client) {
  auto info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  Rows rows;
  const auto add = [&rows](const std::string& key, const nlohmann::ordered_json& value) {
    rows.push_back({{"key", key}, {"value", value}});
  };
  add("version", info->version);
  add("store", info->store);
  add("state", info->draining ? "draining" : "serving");
  add("uptime_ms", info->uptime.count());
  add("budget_bytes", info->budget_bytes);
  add("stored_bytes", info->stored_bytes);
  add("reserved_bytes", info->reserved_bytes);
  add("runs", info->runs);
  add("samples", info->samples);
  for (const auto& [name, value] : info->counters) add(name, value);
  return rows;
}

absl::StatusOr<Rows> RunsCommand(Client& client) {
  auto runs = client.ListRuns();
  if (!runs.ok()) return runs.status();
  Rows rows;
  for (const RunSummary& run : *runs) {
    rows.push_back({{"run", run.run},
                    {"geometry", run.geometry.DebugString()},
                    {"samples", run.samples},
                    {"sealed", run.sealed_samples},
                    {"rows", run.committed_rows},
                    {"stored", HumanBytes(run.stored_bytes)}});
  }
  return rows;
}

absl::StatusOr<Rows> ListCommand(Client& client, const std::string& run, Producer producer) {
  auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  auto samples = (*joined)->List({}, producer);
  if (!samples.ok()) return samples.status();
  Rows rows;
  for (const SampleState& sample : *samples) rows.push_back(Describe(sample));
  return rows;
}

absl::StatusOr<Rows> StatCommand(Client& client, const std::string& run, const std::vector<std::string>& samples,
                                 Producer producer) {
  auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  Rows rows;
  for (const std::string& sample : samples) {
    auto state = (*joined)->Stat(sample, producer);
    if (!state.ok()) return state.status();
    rows.push_back(DescribeFully(*state));
  }
  return rows;
}

absl::StatusOr<Rows> GetCommand(Client& client, const GetOptions& options) {
  auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  ReadRequest request{.producer = options.producer, .layers = options.layers, .samples = {{.sample = options.sample}}};
  if (options.rows) request.samples[0].rows = {*options.rows};
  auto read = (*run)->ReadRows(request, kTimeout);
  if (!read.ok()) return read.status();
  const SampleRows& sample = (*read)[0];
  if (sample.record.status != SampleStatus::kOk) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.sample, ": ", SampleStatusName(sample.record.status), ": ", sample.record.message));
  }
  std::vector<int32_t> layers = options.layers;
  if (layers.empty()) {
    for (const LayerRouting& layer : (*run)->geometry().layers()) layers.push_back(layer.layer_id);
  }
  Rows rows;
  int64_t slot = 0;
  for (RowRange range : sample.rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++slot) {
      for (size_t i = 0; i < layers.size(); ++i) {
        const int32_t k = (*run)->geometry().layer(*(*run)->geometry().FindOrdinal(layers[i])).top_k;
        const auto* ids = sample.layers[i].data() + slot * k;
        rows.push_back({{"row", row}, {"layer", layers[i]}, {"experts", std::vector<int>(ids, ids + k)}});
      }
    }
  }
  return rows;
}

absl::StatusOr<Rows> PutCommand(Client& client, const PutOptions& options) {
  auto bytes = ReadFile(options.file);
  if (!bytes.ok()) return bytes.status();
  const absl::Span<const uint8_t> payload(reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size());
  auto header = ParseNpyHeader(payload);
  if (!header.ok()) return header.status();
  if (header->shape.size() != 3) return absl::InvalidArgumentError("the array must be [rows, layers, K]");
  auto run = OpenRunFor(client, options, *header);
  if (!run.ok()) return run.status();
  AppendOptions append{.sample = options.sample, .group = options.group, .engine = "rrctl"};
  if (const auto state = (*run)->Stat(options.sample); state.ok()) {
    append.row_start = state->committed_rows;
    append.revision = state->revision;
  }
  append.row_start = options.row_start.value_or(append.row_start);
  if (options.seal) append.seal_num_tokens = append.row_start + header->shape[0] + 1;
  auto outcome = (*run)->Put(append, {.encoding = Encoding::kNpy}, payload);
  if (!outcome.ok()) return outcome.status();
  return Rows{{{"sample", options.sample},
               {"rows", outcome->committed_rows},
               {"revision", outcome->revision},
               {"sealed", outcome->sealed},
               {"trimmed", outcome->trimmed_rows},
               {"conflicting", outcome->conflicting_rows},
               {"unrecorded", outcome->unrecorded_rows}}};
}

absl::StatusOr<Rows> RemoveCommand(Client& client, const std::string& run, const std::vector<std::string>& samples) {
  auto joined = client.JoinRun(run);
  if (!joined.ok()) return joined.status();
  auto outcome = samples.empty() ? (*joined)->Drop() : (*joined)->Release(samples);
  if (!outcome.ok()) return outcome.status();
  return Rows{{{"run", run}, {"samples", outcome->samples}, {"bytes", outcome->bytes}}};
}

absl::StatusOr<RowRange> ParseRows(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  RowRange range;
  if (parts.size() == 1 && absl::SimpleAtoi(parts[0], &range.begin) && range.begin >= 0) {
    return RowRange::OfSize(range.begin, 1);
  }
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &range.begin) && absl::SimpleAtoi(parts[1], &range.end) &&
      range.begin >= 0 && range.begin < range.end) {
    return range;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ROW or BEGIN:END"));
}

}  // namespace routing_replay
