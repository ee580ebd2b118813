/* The trainer plugin's kernels for other languages: realign and router replay on a GPU. Their library,
 * librouting_replay_trainer_cuda.so, contains CUDA's runtime and needs only the driver. It can be loaded without a
 * driver; rrt_cuda_check_device then returns an error. It exports only the functions below.
 *
 * Each function puts one kernel on `stream` (a cudaStream_t of the current device; NULL is the default stream). It does
 * not wait, allocate or make streams, so it may be captured in a CUDA graph, which keeps addresses and everything that
 * is passed by value. Tensors are device memory, contiguous and aligned to their elements; the caller must keep them
 * until the kernel has run. capi.h describes the tensors, and has the same functions for the CPU; both compute the
 * same, with sums in the same order. States are not checked: an unknown state counts as replayed. Counters are in
 * device memory, at an address that is a multiple of 8, and calls only add to them; with NULL, nothing is counted.
 *
 * Functions return NULL, or an error for rr_free of librouting_replay.so, which must have the version of this library:
 * INVALID_ARGUMENT naming the field, INTERNAL with CUDA's message if CUDA rejects the launch. Thread-safe. */
#ifndef ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_
#define ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_

#include "routing_replay/trainer/capi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; raised when the meaning of anything in it changes. */
#define RRT_CUDA_ABI_VERSION 2
RRT_API int32_t rrt_cuda_abi_version(void);

/* Checks whether the kernels run on a device; call it once, before anything is launched there. If not, returns
 * FAILED_PRECONDITION with a field that says what is missing: "cuda.driver" (no driver, or one too old for the CUDA of
 * this build), "cuda.device" (no such device) or "cuda.architecture" (the library has no code for this GPU). Does not
 * change the current device. */
RRT_API rr_error* rrt_cuda_check_device(int32_t device);

/* Realigns a block that rrt_staged_write wrote and the caller copied to `block` (an address that is a multiple of 16),
 * into index buffers and row states. All pointers are device memory. units: the number from rrt_staged_new; any other
 * number changes only the speed. */
RRT_API rr_error* rrt_cuda_realign(const void* block, int64_t staging_offset, int64_t units, void* indices,
                                   uint8_t* states, void* stream);

/* counters: points to an rrt_router_counters. The backward pass counts only clamped ids. */
RRT_API rr_error* rrt_cuda_router_forward(const rrt_router* router, int64_t rows, const void* logits,
                                          const void* indices, const uint8_t* states, const float* expert_bias,
                                          void* probs, uint8_t* routing_map, void* chosen,
                                          rrt_router_counters* counters, void* stream);
RRT_API rr_error* rrt_cuda_router_backward(const rrt_router* router, int64_t rows, const void* logits,
                                           const void* chosen, const void* grad_probs, void* grad_logits,
                                           rrt_router_counters* counters, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_ */
