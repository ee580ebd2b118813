#include "server/operations/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace routing_replay::server {

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit wanted{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &wanted) == 0) limit = wanted;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

}  // namespace routing_replay::server
