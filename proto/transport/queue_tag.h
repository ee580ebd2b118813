// Small numbers as tags of a completion queue, which wants addresses and only hands them back.
#ifndef PROTO_TRANSPORT_QUEUE_TAG_H_
#define PROTO_TRANSPORT_QUEUE_TAG_H_

#include <cstdint>

namespace routing_replay {
inline namespace wire {

inline void* QueueTag(intptr_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): nobody looks at what is there.
}
inline intptr_t NumberOf(void* queue_tag) { return reinterpret_cast<intptr_t>(queue_tag); }

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_TRANSPORT_QUEUE_TAG_H_
