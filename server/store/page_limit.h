// How many samples come in one page of a list.
#ifndef SERVER_STORE_PAGE_LIMIT_H_
#define SERVER_STORE_PAGE_LIMIT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace routing_replay {

// What Store::List says of page_size. INVALID_ARGUMENT (kField) below 0.
absl::StatusOr<size_t> PageLimit(int32_t page_size);

}  // namespace routing_replay

#endif  // SERVER_STORE_PAGE_LIMIT_H_
