#include "server/store/page_limit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr int32_t kDefaultPageSize = 1000;
constexpr int32_t kMaxPageSize = 10000;

}  // namespace

absl::StatusOr<size_t> PageLimit(int32_t page_size) {
  if (page_size < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("page_size: ", page_size, " is negative"),
                     {.reason = Reason::kField, .field = "page_size"});
  }
  return static_cast<size_t>(page_size == 0 ? kDefaultPageSize : std::min(page_size, kMaxPageSize));
}

}  // namespace routing_replay
