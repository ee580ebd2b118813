// The router of one layer, on the CPU (router_cpu.cc) or a GPU (router_cuda.cc): whichever the program is built with.
#ifndef ROUTER_H_
#define ROUTER_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"

struct RouterInput {
  routing_replay::trainer::RouterConfig config;
  absl::Span<const float> logits;                              // [N][E]
  absl::Span<const uint8_t> indices;                           // [N][K], the layer's slab of the index buffer.
  absl::Span<const routing_replay::trainer::RowState> states;  // [N]
  absl::Span<const float> grad_probs;                          // [N][E]
};

struct RouterOutput {
  explicit RouterOutput(const RouterInput& input)
      : probs(input.logits.size()),
        routing_map(input.logits.size()),
        chosen(input.indices.size()),
        grad_logits(input.logits.size()) {}
  std::vector<float> probs;          // [N][E]
  std::vector<uint8_t> routing_map;  // [N][E]
  std::vector<uint8_t> chosen;       // [N][K], what backward needs of forward.
  std::vector<float> grad_logits;    // [N][E]
  routing_replay::trainer::RouterCounters counters;
};

// Forward and backward.
absl::StatusOr<RouterOutput> RunRouter(const RouterInput& input);

#endif  // ROUTER_H_
