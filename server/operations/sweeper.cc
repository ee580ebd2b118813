#include "server/operations/sweeper.h"

namespace routing_replay::server {
namespace {

// Keeps one sweep short, so that appends are not held up.
constexpr int64_t kBatch = 1000;

}  // namespace

Sweeper::Sweeper(Store& store, Metrics& metrics, std::chrono::milliseconds interval)
    : thread_([&store, &metrics, interval] {
        const int64_t removed = store.Sweep(kBatch);
        metrics.CountExpired(removed);
        // A full batch means that more is waiting.
        return removed < kBatch ? interval : std::chrono::milliseconds(1);
      }) {}

}  // namespace routing_replay::server
