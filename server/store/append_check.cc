#include "server/store/append_check.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::server {
namespace {

constexpr size_t kMaxTextBytes = 128;
constexpr size_t kTokenBytes = 4;

absl::Status BadField(absl::string_view field, absl::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", why),
                   {.reason = Reason::kField, .field = std::string(field)});
}

absl::Status BadRowCount(absl::string_view field, absl::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, ": ", why),
                   {.reason = Reason::kRowCount, .field = std::string(field)});
}

absl::Status CheckRows(const AppendHeader& header) {
  const RowRange rows = header.rows;
  if (rows.begin < 0 || rows.end < rows.begin || rows.end > kMaxRows) {
    return BadField("append.rows", absl::StrCat(ToString(rows), " is not inside [0, ", kMaxRows, ")"));
  }
  const absl::Status normal = CheckNormal(header.unrecorded, rows);
  if (!normal.ok()) return BadField("append.unrecorded", normal.message());
  return absl::OkStatus();
}

absl::Status CheckTokens(const AppendHeader& header) {
  const size_t rows = static_cast<size_t>(header.rows.size());
  if (!header.token_ids.empty() && header.token_ids.size() != rows * kTokenBytes) {
    return BadField("append.token_ids",
                    absl::StrCat(header.token_ids.size(), " bytes for ", rows, " rows, 4 per row are expected"));
  }
  if (header.rows.begin == 0 && header.token_check_start.value_or(0) != 0) {
    return BadField("append.token_check_start", "is not 0 although the append starts at row 0");
  }
  return absl::OkStatus();
}

absl::Status CheckSeal(const AppendHeader& header) {
  if (!header.seal_num_tokens) return absl::OkStatus();
  const int64_t tokens = *header.seal_num_tokens;
  if (tokens < 1 || tokens > kMaxRows + 1) {
    return BadRowCount("append.seal_num_tokens", absl::StrCat(tokens, " is not inside [1, ", kMaxRows + 1, "]"));
  }
  return absl::OkStatus();
}

// So that every group lies in some half-open range of groups.
absl::Status CheckGroup(const AppendHeader& header) {
  if (header.group != std::numeric_limits<int64_t>::max()) return absl::OkStatus();
  return BadField("append.group", "is 2^63 - 1, one more than the highest group");
}

absl::Status CheckTexts(const AppendHeader& header) {
  if (header.weight_label.size() > kMaxTextBytes) return BadField("append.weight_label", "is over 128 bytes");
  if (header.engine.size() > kMaxTextBytes) return BadField("append.engine", "is over 128 bytes");
  if (header.weight_version < kUnknownWeightVersion) {
    return BadField("append.weight_version", absl::StrCat(header.weight_version, " is below -1"));
  }
  return absl::OkStatus();
}

absl::Status CheckPrefix(const AppendHeader& header) {
  if (!header.prefix) return absl::OkStatus();
  const PrefixReference& prefix = *header.prefix;
  if (absl::Status id = CheckId(prefix.sample, "append.prefix.sample"); !id.ok()) return id;
  if (prefix.sample == header.sample) return BadField("append.prefix.sample", "is the sample itself");
  if (prefix.rows < 0 || prefix.rows > kMaxRows) {
    return BadField("append.prefix.rows", absl::StrCat(prefix.rows, " is not inside [0, ", kMaxRows, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckCoverage(const AppendHeader& header, absl::Span<const Block> blocks) {
  std::vector<RowRange> covered;
  for (const Block& block : blocks) {
    if (block.rows.empty() || (!covered.empty() && block.rows.begin < covered.back().end)) {
      return BadRowCount("append.blocks", absl::StrCat(ToString(block.rows), " is empty or not ascending"));
    }
    AppendMerged(covered, block.rows);
  }
  if (covered == Subtract(header.rows, header.unrecorded)) return absl::OkStatus();
  return BadRowCount("append.blocks", absl::StrCat("the blocks are not exactly the recorded rows of ",
                                                   ToString(header.rows), ", they hold ", TotalRows(covered)));
}

}  // namespace

absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks) {
  if (absl::Status status = CheckId(header.sample, "append.sample"); !status.ok()) return status;
  for (auto check : {CheckRows, CheckTokens, CheckSeal, CheckGroup, CheckTexts, CheckPrefix}) {
    if (absl::Status status = check(header); !status.ok()) return status;
  }
  return CheckCoverage(header, blocks);
}

}  // namespace routing_replay::server
