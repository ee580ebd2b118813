// How many files and connections the process may have open.
#ifndef SERVER_OPERATIONS_DESCRIPTOR_LIMIT_H_
#define SERVER_OPERATIONS_DESCRIPTOR_LIMIT_H_

#include <cstdint>

namespace routing_replay::server {

// Fewer are used up by clients that mean no harm.
inline constexpr int64_t kFewDescriptors = 8192;

// Raises the limit of open descriptors as far as it may be raised, and returns it.
int64_t RaiseDescriptorLimit();

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_DESCRIPTOR_LIMIT_H_
