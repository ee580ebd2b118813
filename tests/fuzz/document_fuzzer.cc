// Any text as what people write: the description of a plan, a pipeline layout, a hybrid pattern, a token file, the
// index of an exported run, and the server's settings. It is rejected with INVALID_ARGUMENT that names a field, or what
// it gives is consistent.
//
// The first byte of an input chooses the kind.
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/checksum.h"
#include "server/config/config.h"
#include "server/security/token_file.h"
#include "tests/fuzz/smoke.h"
#include "tests/support/scratch_directory.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay {
namespace {

void RequireInvalid(const absl::Status& status) {
  Require(status.code() == absl::StatusCode::kInvalidArgument, "another code than INVALID_ARGUMENT");
  Require(!status.message().empty(), "an error without a message");
}

// Each row that the plan replays is a row that it reads, once.
void CheckPlan(const std::string& text) {
  const auto described = trainer::DescribedPlanFromJson(text);
  if (!described.ok()) return RequireInvalid(described.status());
  int64_t rows = 0;
  for (const trainer::PlanSlice& slice : described->plan.slices) {
    Require(CheckNormal(slice.rows, {0, kMaxRows}).ok(), "a slice's rows are no normal list");
    Require(static_cast<size_t>(slice.sequence) < described->sequences(), "a slice of no sequence");
    rows += TotalRows(slice.rows);
  }
  Require(rows == described->plan.rows_to_read, "rows_to_read is not the sum of the slices");
  Require(trainer::PlanFromJson(text).ok(), "a plan cannot be written");
}

void CheckLayout(const std::string& text) {
  const auto layout = trainer::ParsePipelineLayout(text);
  if (!layout.ok()) return RequireInvalid(layout.status());
  size_t size = layout->stages.size() - 1;
  std::string written;
  for (const std::string& stage : layout->stages) {
    size += stage.size();
    absl::StrAppend(&written, written.empty() && &stage == &layout->stages[0] ? "" : "|", stage);
  }
  Require(size <= trainer::kMaxLayoutText, "a layout is longer than its limit");
  const auto again = trainer::ParsePipelineLayout(written);
  Require(again.ok() && *again == *layout, "a layout that is written out is another one");
}

void CheckPattern(const std::string& text) {
  const auto pattern = trainer::ParseHybridPattern(text);
  if (!pattern.ok()) return RequireInvalid(pattern.status());
  int32_t layer = 0;
  std::vector<int32_t> moe;
  for (const std::string& stage : pattern->stages) {
    for (const char symbol : stage) {
      if (symbol == 'E') moe.push_back(layer);
      ++layer;
    }
  }
  Require(layer == pattern->num_layers() && moe == pattern->moe_layer_ids, "layers of a pattern are not its symbols");
}

void CheckTokens(const std::string& text) {
  const auto grants = server::ParseTokenFile(text);
  if (!grants.ok()) return RequireInvalid(grants.status());
  for (const server::TokenGrant& grant : *grants) {
    Require(!grant.run_prefixes.empty() && !grant.scopes.empty(), "a token that may do nothing");
    Require(grant.max_runs.value_or(1) > 0, "a token that may make no run");
  }
}

const std::string& Directory() {
  static const testing::ScratchDirectory directory;
  return directory.path();
}

// A new file: one that is overwritten goes to the disk when it is closed (ext4), which takes longer than the rest.
std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(Directory(), "/", name);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// With the checksum that belongs to it, so that the rest is read.
void CheckIndex(const std::string& text) {
  const uint32_t crc = Crc32c({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  WriteFile(kExportIndex, absl::StrCat(text, "\"crc32c\":\"", absl::Hex(crc, absl::kZeroPad8), "\"}\n"));
  const auto run = ReadExportedRun(Directory());
  if (!run.ok()) {
    const auto code = run.status().code();
    Require(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kFailedPrecondition ||
                code == absl::StatusCode::kDataLoss,
            "an index is rejected with another code");
    return;
  }
  for (const ExportedSample& sample : run->samples) {
    Require(sample.num_tokens >= 1 && sample.recorded_rows() >= 0, "a sample with less than no rows");
    Require(sample.file.find('/') == std::string::npos, "a file in another directory");
  }
}

// --insecure: else names of listeners are resolved.
absl::StatusOr<server::ServerConfig> ParseSettings(const std::string& text) {
  const std::string path = WriteFile("settings.yaml", text);
  const char* const arguments[] = {"routing-replay-server", "--insecure", "--config", path.c_str()};
  return server::ParseServerConfig(std::size(arguments), arguments);
}

// What is printed is read as the same.
void CheckSettings(const std::string& text) {
  const auto config = ParseSettings(text);
  if (!config.ok()) return RequireInvalid(config.status());
  const std::string printed = server::ToYaml(*config);
  const auto again = ParseSettings(printed);
  Require(again.ok() && server::ToYaml(*again) == printed, "settings that are printed are other ones");
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(data + 1, data + size);
  switch (data[0] % 6) {
    case 0:
      routing_replay::CheckPlan(text);
      break;
    case 1:
      routing_replay::CheckLayout(text);
      break;
    case 2:
      routing_replay::CheckPattern(text);
      break;
    case 3:
      routing_replay::CheckTokens(text);
      break;
    case 4:
      routing_replay::CheckIndex(text);
      break;
    default:
      routing_replay::CheckSettings(text);
  }
  return 0;
}
