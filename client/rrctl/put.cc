#include "client/rrctl/put.h"

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/rrctl/file.h"
#include "proto/json/rows_file.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// That the options and the file's shape tell; nothing where the run is to be there.
absl::StatusOr<std::optional<Geometry>> GeometryFor(const PutOptions& options, const std::vector<int64_t>& shape) {
  if (options.num_experts == 0) return std::nullopt;
  if (shape[1] < 1 || shape[1] > kMaxLayers || shape[2] > kMaxTopK) {
    return absl::InvalidArgumentError(absl::StrCat("an array of ", shape[1], " layers and K ", shape[2], "; 1 to ",
                                                   kMaxLayers, " layers and K up to ", kMaxTopK, " make a run"));
  }
  const auto layers = static_cast<int32_t>(shape[1]);
  std::vector<int32_t> moe_layers = options.moe_layers;
  if (moe_layers.empty()) {
    moe_layers.resize(layers);
    std::iota(moe_layers.begin(), moe_layers.end(), 0);
  }
  const int32_t last = std::min(*std::max_element(moe_layers.begin(), moe_layers.end()), kMaxLayers);
  auto geometry = Geometry::Create({.num_layers = std::max(layers, last + 1),
                                    .moe_layer_ids = std::move(moe_layers),
                                    .num_experts = {options.num_experts},
                                    .top_k = {options.top_k.value_or(static_cast<int32_t>(shape[2]))}});
  if (!geometry.ok()) return geometry.status();
  return *std::move(geometry);
}

// Joins the run, or makes it. Rows that do not fit make none: its geometry is for good.
absl::StatusOr<std::shared_ptr<Run>> OpenRunFor(Client& client, const PutOptions& options, const RowsFile& rows) {
  const auto geometry = GeometryFor(options, rows.tensor.shape);
  if (!geometry.ok()) return geometry.status();
  if (!*geometry) return client.JoinRun(options.run);
  const auto decoded = DecodeTensor(**geometry, rows.tensor, rows.payload, {.max_payload_bytes = INT64_MAX});
  if (!decoded.ok()) return decoded.status();
  auto run = client.OpenRun(options.run, **geometry);
  if (absl::IsNotFound(run.status())) {
    return MakeError(absl::StatusCode::kNotFound,
                     absl::StrCat("run \"", options.run, "\" cannot be made: the token does not cover its name"),
                     {.reason = Reason::kNoRun, .field = "run"});
  }
  return run;
}

// The rows of the file that go into one sample, behind those that are there.
absl::StatusOr<AppendOutcome> PutSample(Run& run, const PutOptions& options, const std::string& sample,
                                        const RowsFile& rows, std::optional<RowRange> take) {
  AppendOptions append{.sample = sample,
                       .producer = options.producer,
                       .take = take,
                       .group = options.group,
                       .seal = options.seal,
                       .engine = "rrctl"};
  const auto state = run.Stat(sample, options.producer);
  if (state.ok()) {
    append.row_start = state->committed_rows;
    append.revision = state->revision;
  } else if (!absl::IsNotFound(state.status())) {
    return state.status();
  }
  append.row_start = options.row_start.value_or(append.row_start);
  return run.Put(append, rows.tensor, rows.payload);
}

absl::StatusOr<Document> PutOne(Run& run, const PutOptions& options, const RowsFile& rows) {
  const auto outcome = PutSample(run, options, options.sample, rows, std::nullopt);
  if (!outcome.ok()) return outcome.status();
  return Document{{"sample", options.sample},
                  {"rows", outcome->committed_rows},
                  {"revision", outcome->revision},
                  {"sealed", outcome->sealed},
                  {"trimmed_rows", outcome->trimmed_rows},
                  {"conflicting_rows", outcome->conflicting_rows},
                  {"unrecorded_rows", outcome->unrecorded_rows}};
}

absl::StatusOr<Document> PutTrace(Run& run, const PutOptions& options, const RowsFile& rows, std::istream& input) {
  const auto index = ReadFile(options.index, input);
  if (!index.ok()) return index.status();
  const absl::string_view text(reinterpret_cast<const char*>(index->data()), index->size());
  const std::string stem = std::filesystem::path(options.file).stem().string();
  const auto sequences = TraceSequences(text, stem, rows.tensor.shape[0]);
  if (!sequences.ok()) return sequences.status();
  AppendOutcome all;
  for (size_t i = 0; i < sequences->size(); ++i) {
    const std::string sample = absl::StrCat(options.sample, "/", i);
    const auto outcome = PutSample(run, options, sample, rows, (*sequences)[i]);
    if (!outcome.ok()) return outcome.status();
    all.trimmed_rows += outcome->trimmed_rows;
    all.conflicting_rows += outcome->conflicting_rows;
    all.unrecorded_rows += outcome->unrecorded_rows;
  }
  return Document{{"samples", static_cast<int64_t>(sequences->size())},
                  {"rows", rows.tensor.shape[0]},
                  {"trimmed_rows", all.trimmed_rows},
                  {"conflicting_rows", all.conflicting_rows},
                  {"unrecorded_rows", all.unrecorded_rows}};
}

}  // namespace

absl::StatusOr<Document> Put(Client& client, const PutOptions& options, std::istream& input) {
  const auto file = ReadFile(options.file, input);
  if (!file.ok()) return file.status();
  const auto rows = OpenRowsFile(*file, options.tensor);
  if (!rows.ok()) return rows.status();
  if (rows->tensor.shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array of ", rows->tensor.shape.size(), " axes; it must be [rows, layers, K]"));
  }
  const auto run = OpenRunFor(client, options, *rows);
  if (!run.ok()) return run.status();
  return options.index.empty() ? PutOne(**run, options, *rows) : PutTrace(**run, options, *rows, input);
}

}  // namespace routing_replay::client
