/* The trainer plugin's kernels for other languages: realign, router replay and compare on a GPU. The library
 * behind it, librouting_replay_trainer_cuda.so, has CUDA's runtime in it and needs the driver alone; it can be loaded
 * where there is no driver, and then rrt_cuda_check_device says so. It shows no symbol but these.
 *
 * Each function puts one kernel on `stream` (a cudaStream_t of the current device; NULL is the default stream). It
 * neither waits nor allocates nor makes streams, so it may be captured in a CUDA graph, which keeps addresses and
 * everything that is passed by value. Tensors are device memory, contiguous, aligned to their elements, and the
 * caller's until the stream has passed the call. What they are is said in capi.h, where the same functions run on the
 * CPU; what is computed is the same, sums in the same order. States are not looked at before: one that is not a state
 * counts as replayed. Counters lie in device memory, on a multiple of 8, and are only added to; they may be NULL where
 * nobody counts.
 *
 * Functions return NULL, or an error for rr_free of librouting_replay.so, which is of one version with this library:
 * INVALID_ARGUMENT naming the field, INTERNAL with CUDA's words where it rejects the launch. Thread-safe. */
#ifndef ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_
#define ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_

#include "routing_replay/trainer/capi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number of this interface; raised when something in it changes its meaning. */
#define RRT_CUDA_ABI_VERSION 1
RRT_API int32_t rrt_cuda_abi_version(void);

/* Whether the kernels run on a device: to be asked once, before anything is launched there. FAILED_PRECONDITION whose
 * field is what is missing: "cuda.driver" (there is none, or it is too old for the CUDA that this was built with),
 * "cuda.device" (no such device), "cuda.architecture" (there is no code for it in this library). The current device
 * stays what it is. */
RRT_API rr_error* rrt_cuda_check_device(int32_t device);

/* The block of rrt_staged_write, copied to `block` (on a multiple of 16), into index buffers and states; all of these
 * in device memory. units: as rrt_staged_new says; a block with more or fewer runs all the same. */
RRT_API rr_error* rrt_cuda_realign(const void* block, int64_t staging_offset, int64_t units, void* indices,
                                   uint8_t* states, void* stream);

/* counters: an rrt_router_counters. The backward pass counts clamped ids alone. */
RRT_API rr_error* rrt_cuda_router_forward(const rrt_router* router, int64_t rows, const void* logits,
                                          const void* indices, const uint8_t* states, const float* expert_bias,
                                          void* probs, uint8_t* routing_map, void* compact_probs, void* chosen,
                                          rrt_router_counters* counters, void* stream);
RRT_API rr_error* rrt_cuda_router_backward(const rrt_router* router, int64_t rows, const void* logits,
                                           const void* chosen, const void* grad_probs, void* grad_logits,
                                           rrt_router_counters* counters, void* stream);

/* counters: an rrt_compare_counters, not NULL. */
RRT_API rr_error* rrt_cuda_compare(const rrt_router* router, int64_t rows, const void* replayed, const uint8_t* states,
                                   const void* live, rrt_compare_counters* counters, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* ROUTING_REPLAY_TRAINER_CUDA_CAPI_H_ */
