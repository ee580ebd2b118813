// Takes random text for each kind of file or setting that people write: the description of a plan, a pipeline layout, a
// hybrid pattern, a token file, the index of an exported run, and the server's settings. A parser must either return a
// consistent value, or reject the text with INVALID_ARGUMENT and a message (an index may also have other codes).
//
// The first byte of an input chooses the kind.
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  Require(status.code() == absl::StatusCode::kInvalidArgument, "the code is not INVALID_ARGUMENT");
  Require(!status.message().empty(), "an error without a message");
}

// The slices of a plan must be normal lists of rows, and together have as many rows as the plan says it reads.
void CheckPlan(const std::string& text) {
  const auto described = trainer::DescribedPlanFromJson(text);
  if (!described.ok()) return RequireInvalid(described.status());
  int64_t rows = 0;
  for (const trainer::PlanSlice& slice : described->plan.slices) {
    Require(CheckNormal(slice.rows, {0, kMaxRows}).ok(), "the rows of a slice are not a normal list");
    Require(static_cast<size_t>(slice.sequence) < described->sequences(), "a slice has no sequence");
    rows += TotalRows(slice.rows);
  }
  Require(rows == described->plan.rows_to_read, "rows_to_read is not the sum of the slices");
  Require(trainer::PlanFromJson(text).ok(), "a valid plan has no JSON form");
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
  Require(again.ok() && *again == *layout, "a layout changes when it is written and parsed again");
}

void CheckPattern(const std::string& text) {
  const auto pattern = trainer::ParseHybridPattern(text);
  if (!pattern.ok()) return RequireInvalid(pattern.status());
  const size_t layers = absl::StrJoin(pattern->stages, "").size();
  Require(layers == static_cast<size_t>(pattern->num_layers()), "num_layers differs from the symbols");
  const std::string stages = absl::StrJoin(pattern->stages, "|");
  Require(stages == text.substr(0, text.find('/')), "the stages differ from the symbols");
}

void CheckTokens(const std::string& text) {
  const auto grants = server::ParseTokenFile(text);
  if (!grants.ok()) return RequireInvalid(grants.status());
  for (const server::TokenGrant& grant : *grants) {
    Require(!grant.run_prefixes.empty() && !grant.scopes.empty(), "a token has no run prefix or no scope");
    Require(grant.max_runs.value_or(1) > 0, "a token may create no run");
  }
}

const std::string& Directory() {
  static const testing::ScratchDirectory directory;
  return directory.path();
}

// Removes an earlier file first: ext4 would flush an overwritten file when it is closed, and that takes longer than the
// rest of the test.
std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(Directory(), "/", name);
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// Appends the right checksum to the text, because the parser would otherwise reject the file before it parses the text.
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
    Require(sample.num_tokens >= 1 && sample.recorded_rows() >= 0, "a sample has a negative number of rows");
    Require(sample.file.find('/') == std::string::npos, "a file is in another directory");
  }
}

// Passes --insecure, because without it the parser looks up the host names of the listeners in the settings.
absl::StatusOr<server::ServerConfig> ParseSettings(const std::string& text) {
  const std::string path = WriteFile("settings.yaml", text);
  const char* const arguments[] = {"routing-replay-server", "--insecure", "--config", path.c_str()};
  return server::ParseServerConfig(std::size(arguments), arguments);
}

// Settings that are printed and parsed again must stay the same.
void CheckSettings(const std::string& text) {
  const auto config = ParseSettings(text);
  if (!config.ok()) return RequireInvalid(config.status());
  const std::string printed = server::ToYaml(*config);
  const auto again = ParseSettings(printed);
  Require(again.ok() && server::ToYaml(*again) == printed, "settings change when they are printed and parsed again");
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
