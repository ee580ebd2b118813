#include "server/store/append_check.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

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
                 absl::StrCat("the blocks are not exactly the recorded rows of ", ToString(header.rows), ", they hold ",
                              TotalRows(covered)));
}

}  // namespace

absl::Status CheckAppend(const AppendHeader& header, absl::Span<const Block> blocks) {
  if (absl::Status status = CheckAppendHeader(header); !status.ok()) return status;
  return CheckCoverage(header, blocks);
}

}  // namespace routing_replay::server
