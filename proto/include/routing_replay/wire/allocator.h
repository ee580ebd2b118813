// Settings of the C library's allocator for processes that send and receive messages of megabytes.
#ifndef ROUTING_REPLAY_WIRE_ALLOCATOR_H_
#define ROUTING_REPLAY_WIRE_ALLOCATOR_H_

#include <malloc.h>

#include <climits>

namespace routing_replay {

// By default glibc gives large blocks back to the kernel as soon as they are freed and takes them again, page by page,
// for the next message, which costs more than copying the bytes. With these settings glibc keeps freed memory: blocks
// up to 32 MiB come from the heap, which grows by 4 MiB at a time and shrinks only if the program calls malloc_trim.
//
// glibc also keeps small freed blocks in "fast bins", without merging them with their neighbours, and walks through all
// of these whenever a larger block is requested. After a run with a million small samples is dropped, this makes every
// append, and the end of the next run, two to three times as slow. So fast bins are turned off: small blocks are merged
// as soon as they are freed. The per-thread cache stays on.
//
// The setting applies to the whole process, so no library function calls this: a program does, at the start of main,
// before threads allocate. It has no effect if another allocator is linked or preloaded. A process that cannot call
// this gets the same with the environment variable GLIBC_TUNABLES (one line): glibc.malloc.trim_threshold=2147483647:
// glibc.malloc.mmap_threshold=33554432:glibc.malloc.mxfast=0:glibc.malloc.top_pad=4194304
inline void TuneAllocator() {
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_MXFAST, 0);
  mallopt(M_TOP_PAD, 4 << 20);
}

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_ALLOCATOR_H_
