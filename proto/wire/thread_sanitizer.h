// For ThreadSanitizer, which does not see how a library that is built without it orders what threads do: where one of
// ours hands something to another through such a library, both say so.
#ifndef PROTO_WIRE_THREAD_SANITIZER_H_
#define PROTO_WIRE_THREAD_SANITIZER_H_

#ifdef RR_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace routing_replay {
inline namespace wire {

// What this thread has done happens before what another does after TakeOver of the same address.
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
