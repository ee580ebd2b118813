// Annotations for ThreadSanitizer. It cannot see synchronization inside libraries that were built without it, such as
// gRPC. Where one of our threads passes something to another through such a library, both threads call these functions.
#ifndef PROTO_WIRE_THREAD_SANITIZER_H_
#define PROTO_WIRE_THREAD_SANITIZER_H_

#ifdef RR_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace routing_replay {
inline namespace wire {

// Everything this thread did before HandOver happens before everything another thread does after TakeOver with the same
// address.
inline void HandOver([[maybe_unused]] void* what) {
#ifdef RR_THREAD_SANITIZER
  __tsan_release(what);
#endif
}

inline void TakeOver([[maybe_unused]] void* what) {
#ifdef RR_THREAD_SANITIZER
  __tsan_acquire(what);
#endif
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_THREAD_SANITIZER_H_
