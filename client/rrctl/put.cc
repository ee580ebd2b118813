#include "client/rrctl/put.h"

#include <algorithm>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/rrctl/human.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay {
namespace {

// More than any server takes in one append.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr size_t kReadBytes = size_t{1} << 20;

absl::StatusOr<std::vector<uint8_t>> ReadAll(std::istream& input, const std::string& name) {
  std::vector<uint8_t> bytes;
  while (input.good()) {
    const size_t size = bytes.size();
    bytes.resize(size + kReadBytes);
    input.read(reinterpret_cast<char*>(bytes.data() + size), kReadBytes);
    bytes.resize(size + input.gcount());
    if (static_cast<int64_t>(bytes.size()) > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", HumanBytes(kMaxFileBytes),
                                                     ", which no append may have; put it in parts"));
    }
  }
  if (input.bad()) return absl::DataLossError(absl::StrCat("cannot read ", name));
  return bytes;
}

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input) {
  if (path == "-") return ReadAll(input, "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return ReadAll(file, path);
}

// Joins the run, or makes it with the geometry that the options and the file's shape tell.
absl::StatusOr<std::shared_ptr<Run>> OpenRunFor(Client& client, const PutOptions& options, const NpyHeader& header) {
  if (!options.model_config.empty()) {
    std::ifstream file(options.model_config, std::ios::binary);
    if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", options.model_config));
    const auto config = ReadAll(file, options.model_config);
    if (!config.ok()) return config.status();
    const auto model = ModelConfigFromHuggingFace({reinterpret_cast<const char*>(config->data()), config->size()});
    if (!model.ok()) return model.status();
    return client.OpenRun(options.run, model->geometry);
  }
  if (options.num_experts == 0) return client.JoinRun(options.run);
  if (header.shape[1] < 1 || header.shape[1] > kMaxLayers || header.shape[2] > kMaxTopK) {
    return absl::InvalidArgumentError(absl::StrCat("an array of ", header.shape[1], " layers and K ", header.shape[2],
                                                   "; 1 to ", kMaxLayers, " layers and K up to ", kMaxTopK,
                                                   " make a run"));
  }
  const auto layers = static_cast<int32_t>(header.shape[1]);
  std::vector<int32_t> moe_layers = options.moe_layers;
  if (moe_layers.empty()) {
    moe_layers.resize(layers);
    std::iota(moe_layers.begin(), moe_layers.end(), 0);
  }
  const int32_t last = std::min(*std::max_element(moe_layers.begin(), moe_layers.end()), kMaxLayers);
  auto geometry = Geometry::Create({.num_layers = std::max(layers, last + 1),
                                    .moe_layer_ids = std::move(moe_layers),
                                    .num_experts = {options.num_experts},
                                    .top_k = {static_cast<int32_t>(header.shape[2])}});
  if (!geometry.ok()) return geometry.status();
  return client.OpenRun(options.run, *geometry);
}

}  // namespace

absl::StatusOr<Document> Put(Client& client, const PutOptions& options, std::istream& input) {
  const auto payload = ReadFile(options.file, input);
  if (!payload.ok()) return payload.status();
  const auto header = ParseNpyHeader(*payload);
  if (!header.ok()) return header.status();
  if (header->shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array of ", header->shape.size(), " axes; it must be [rows, layers, K]"));
  }
  const auto run = OpenRunFor(client, options, *header);
  if (!run.ok()) return run.status();
  AppendOptions append{
      .sample = options.sample, .producer = options.producer, .group = options.group, .engine = "rrctl"};
  const auto state = (*run)->Stat(options.sample, options.producer);
  if (state.ok()) {
    append.row_start = state->committed_rows;
    append.revision = state->revision;
  } else if (!absl::IsNotFound(state.status())) {
    return state.status();
  }
  append.row_start = options.row_start.value_or(append.row_start);
  if (options.seal) append.seal_num_tokens = append.row_start + header->shape[0] + 1;
  const auto outcome = (*run)->Put(append, {.encoding = Encoding::kNpy}, *payload);
  if (!outcome.ok()) return outcome.status();
  return Document{{"sample", options.sample},
                  {"rows", outcome->committed_rows},
                  {"revision", outcome->revision},
                  {"sealed", outcome->sealed},
                  {"trimmed_rows", outcome->trimmed_rows},
                  {"conflicting_rows", outcome->conflicting_rows},
                  {"unrecorded_rows", outcome->unrecorded_rows}};
}

}  // namespace routing_replay
