#include "client/rrctl/rows.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// The number of ids that one read fetches. These take about 1 MB when decoded, and some tens of MB as JSON.
constexpr int64_t kPortionIds = int64_t{1} << 18;

absl::Status CheckRecord(const SampleRecord& record, const std::string& sample, int64_t revision) {
  if (record.status != SampleStatus::kOk) {
    // With "shard:", a server that does not answer is a status of its samples.
    const bool away = record.status == SampleStatus::kUnavailable;
    return MakeError(away ? absl::StatusCode::kUnavailable : absl::StatusCode::kFailedPrecondition,
                     absl::StrCat(sample, ": ", SampleStatusName(record.status), ": ", record.message),
                     {.sample = sample, .committed_rows = record.committed_rows, .revision = record.revision});
  }
  if (record.revision == revision) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kAborted,
      absl::StrCat(sample, ": revision ", record.revision, " started while revision ", revision, " was read"),
      {.reason = Reason::kOldRevision, .sample = sample, .revision = record.revision});
}

constexpr std::chrono::seconds kReadTimeout(60);  // For one portion.

// Makes the answer for the rows of `portion`: one entry for each row and layer, with null as experts of an unrecorded
// row. `sample` has the recorded rows of the portion, in the requested layers.
Document ToDocument(const Geometry& geometry, const std::vector<int32_t>& layers, RowRange portion,
                    const SampleRows& sample) {
  Document rows = Document::array();
  int64_t slot = 0;
  auto recorded = sample.rows.begin();
  for (int64_t row = portion.begin; row < portion.end; ++row) {
    while (recorded != sample.rows.end() && recorded->end <= row) ++recorded;
    const bool has_ids = recorded != sample.rows.end() && recorded->contains(row);
    for (size_t i = 0; i < layers.size(); ++i) {
      Document experts;
      if (has_ids) {
        const int32_t k = geometry.layer(*geometry.FindOrdinal(layers[i])).top_k;
        const uint16_t* ids = sample.layers[i].data() + slot * k;
        experts = std::vector<uint16_t>(ids, ids + k);
      }
      rows.push_back({{"row", row}, {"layer", layers[i]}, {"experts", std::move(experts)}});
    }
    slot += has_ids;
  }
  return rows;
}

absl::StatusOr<RowRange> ParseRows(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(const auto rows, ParseRange(text, "ROW", 0, kMaxRows));
  return RowRange{rows.first, rows.second};
}

struct PutOptions {
  std::string run;
  std::string sample;
  Producer producer = Producer::kRollout;
  std::string file;                 // .npy, ids [rows, layers, K]; "-": standard input.
  int32_t num_experts = 0;          // E of the run, which is created if it does not exist. 0: the run must exist.
  std::vector<int32_t> moe_layers;  // MoE layers of a new run; empty: layers 0, 1, … as the file has.
  std::optional<int64_t> group;
  bool seal = false;
};

// Makes a geometry from the options and the file's shape. Returns nothing without --experts: then the run must exist.
absl::StatusOr<std::optional<Geometry>> GeometryFor(const PutOptions& options, const std::vector<int64_t>& shape) {
  if (options.num_experts == 0) return std::nullopt;
  if (shape[1] < 1 || shape[1] > kMaxLayers || shape[2] > kMaxTopK) {
    return absl::InvalidArgumentError(absl::StrCat("a run must have 1 to ", kMaxLayers, " layers and K up to ",
                                                   kMaxTopK, ", got an array of ", shape[1], " layers and K ",
                                                   shape[2]));
  }
  const auto layers = static_cast<int32_t>(shape[1]);
  std::vector<int32_t> moe_layers = options.moe_layers;
  if (moe_layers.empty()) {
    moe_layers.resize(layers);
    std::iota(moe_layers.begin(), moe_layers.end(), 0);
  }
  const int32_t last = std::min(*std::max_element(moe_layers.begin(), moe_layers.end()), kMaxLayers);
  return Geometry::Create({.num_layers = std::max(layers, last + 1),
                           .moe_layer_ids = std::move(moe_layers),
                           .num_experts = {options.num_experts},
                           .top_k = {static_cast<int32_t>(shape[2])}});
}

// Joins or creates the run. Checks the rows first, because the geometry of a run cannot be changed later.
absl::StatusOr<std::shared_ptr<Run>> OpenRunFor(Client& client, const PutOptions& options,
                                                const std::vector<int64_t>& shape, absl::Span<const uint8_t> file) {
  RR_ASSIGN_OR_RETURN(const auto geometry, GeometryFor(options, shape));
  if (!geometry) return client.JoinRun(options.run);
  RR_ASSIGN_OR_RETURN(const auto decoded,
                      DecodeTensor(*geometry, {.encoding = Encoding::kNpy}, file, {.max_payload_bytes = INT64_MAX}));
  return client.OpenRun(options.run, *geometry);
}

// Appends the rows of the file to the sample, after the rows that it has.
absl::StatusOr<Document> PutRows(Run& run, const PutOptions& options, absl::Span<const uint8_t> file) {
  AppendOptions append{.sample = options.sample,
                       .producer = options.producer,
                       .group = options.group,
                       .seal = options.seal,
                       .engine = "rrctl"};
  const auto state = run.Stat(options.sample, options.producer);
  if (state.ok()) {
    append.row_start = state->committed_rows;
    append.revision = state->revision;
  } else if (!absl::IsNotFound(state.status())) {
    return state.status();
  }
  RR_ASSIGN_OR_RETURN(const auto outcome, run.Put(append, {.encoding = Encoding::kNpy}, file));
  return Document{{"sample", options.sample},
                  {"rows", outcome.committed_rows},
                  {"revision", outcome.revision},
                  {"sealed", outcome.sealed},
                  {"unrecorded_rows", outcome.unrecorded_rows}};
}

absl::StatusOr<Document> Put(Client& client, const PutOptions& options, std::istream& input) {
  RR_ASSIGN_OR_RETURN(const auto file, ReadFile(options.file, input));
  RR_ASSIGN_OR_RETURN(const auto shape, PayloadShape({.encoding = Encoding::kNpy}, file));
  if (shape.axes.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("the array must be [rows, layers, K], got ", shape.axes.size(), " axes"));
  }
  RR_ASSIGN_OR_RETURN(const auto run, OpenRunFor(client, options, shape.axes, file));
  return PutRows(*run, options, file);
}

// Returns `asked` sorted and without duplicates; all MoE layers if it is empty.
std::vector<int32_t> LayersOf(const Geometry& geometry, std::vector<int32_t> asked) {
  if (asked.empty()) {
    for (const LayerRouting& layer : geometry.layers()) asked.push_back(layer.layer_id);
  }
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

}  // namespace

int64_t PortionRows(const Geometry& geometry) {
  return std::max<int64_t>(1, kPortionIds / std::max<int64_t>(1, geometry.ids_per_row()));
}

absl::StatusOr<SampleRows> ReadPortion(Run& run, const SampleState& state, RowRange portion,
                                       const std::vector<int32_t>& layers) {
  const RowRange there = Intersect(portion, {0, state.committed_rows});
  if (there.empty()) {
    return SampleRows{.layers = std::vector<std::vector<uint16_t>>(run.geometry().num_moe_layers())};
  }
  RR_ASSIGN_OR_RETURN(auto rows, run.ReadRows({.producer = state.producer,
                                               .layers = layers,
                                               .samples = {{.sample = state.sample, .rows = {there}}}},
                                              kReadTimeout));
  RR_RETURN_IF_ERROR(CheckRecord(rows[0].record, state.sample, state.revision));
  return std::move(rows[0]);
}

absl::Status ReadPortions(Run& run, const SampleState& state, RowRange rows, const std::vector<int32_t>& layers,
                          const std::function<absl::Status(RowRange portion, const SampleRows& rows)>& take) {
  for (const RowRange portion : SplitAtWindows(rows, PortionRows(run.geometry()))) {
    RR_ASSIGN_OR_RETURN(const auto there, ReadPortion(run, state, portion, layers));
    RR_RETURN_IF_ERROR(take(portion, there));
  }
  return absl::OkStatus();
}

absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer) {
  RR_ASSIGN_OR_RETURN(const auto state, run.Stat(sample, producer));
  return ReadPortion(run, state, {0, state.committed_rows});
}

absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  RR_ASSIGN_OR_RETURN(const auto state, run->Stat(options.sample, options.producer));
  const Geometry& geometry = run->geometry();
  const std::vector<int32_t> layers = LayersOf(geometry, options.layers);
  const RowRange wanted = options.rows.value_or(RowRange{0, state.committed_rows});
  if (wanted.end > state.committed_rows) {
    return absl::OutOfRangeError(absl::StrCat("--rows: ", wanted.begin, ":", wanted.end, " is out of range: sample ",
                                              options.sample, " has ", state.committed_rows, " rows"));
  }
  return ReadPortions(*run, state, wanted, layers, [&](RowRange portion, const SampleRows& sample) {
    return show(ToDocument(geometry, layers, portion, sample));
  });
}

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::istream& from = path == "-" ? input : file;
  std::vector<uint8_t> bytes;
  while (from.good()) {
    constexpr size_t kReadBytes = size_t{1} << 20;
    const size_t size = bytes.size();
    bytes.resize(size + kReadBytes);
    from.read(reinterpret_cast<char*>(bytes.data() + size), kReadBytes);
    bytes.resize(size + from.gcount());
  }
  if (from.bad()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return bytes;
}

void AddGet(Application& application) {
  const auto options = std::make_shared<GetOptions>();
  CLI::App* get = application.Add("get", "expert ids of a sample, by row and layer", [options](Session& session) {
    RR_ASSIGN_OR_RETURN(const auto client, session.Connect());
    Output::Stream rows(session.output());
    absl::Status status = Get(*client, *options, [&rows](const Document& portion) { return rows.Add(portion); });
    return status.ok() ? rows.End() : status;
  });
  AddRun(get, options->run);
  get->add_option("SAMPLE", options->sample, "name of the sample")->required();
  get->add_option("--layer", options->layers, "only these decoder layers, for example 0,47")
      ->delimiter(',')
      ->type_name("ID,…")
      ->allow_extra_args(false);
  get->add_option_function<std::string>(
         "--rows", [options](const std::string& text) { options->rows = OrUsageError(ParseRows(text), "--rows"); },
         "only one row, or several: 3:17 is row 3 to row 16")
      ->type_name("ROW|BEGIN:END");
  AddProducer(get, options->producer);
}

void AddPut(Application& application) {
  const auto options = std::make_shared<PutOptions>();
  CLI::App* put = application.Add("put", "append the rows in a file to a sample", [options](Session& session) {
    return session.Ask([&](Client& client) { return Put(client, *options, std::cin); });
  });
  AddRun(put, options->run);
  put->add_option("SAMPLE", options->sample, "name of the sample, which is created if it does not exist")->required();
  put->add_option("FILE", options->file, "ids [rows, layers, K], .npy; - is standard input")->required();
  put->add_option("--experts", options->num_experts,
                  "create the run if it does not exist, with this number of experts per layer")
      ->type_name("E")
      ->check(CLI::Range(1, kMaxExperts));
  put->add_option("--layers", options->moe_layers,
                  "with --experts: the decoder layers that have experts; by default 0, 1, … for the layers in the file")
      ->delimiter(',')
      ->type_name("ID,…")
      ->allow_extra_args(false)
      ->check(CLI::Range(0, kMaxLayers - 1));
  put->add_option("--group", options->group, "group of the sample, such as the training step")->type_name("N");
  put->add_flag("--seal", options->seal, "seal the sample: no more rows will come");
  AddProducer(put, options->producer);
}

}  // namespace routing_replay::client
