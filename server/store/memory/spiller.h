// Decides when samples move to the spill directory, and which ones.
#ifndef SERVER_STORE_MEMORY_SPILLER_H_
#define SERVER_STORE_MEMORY_SPILLER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/memory_store.h"
#include "server/store/memory/sample.h"
#include "server/store/spill/spill.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Spills sealed samples, least recently used first. Thread-safe.
class Spiller {
 public:
  // Calls its argument for all samples of the store.
  using VisitSamples = std::function<void(const std::function<void(std::shared_ptr<MemorySample>)>&)>;

  // `memory` must outlive the spiller, and so must everything that `visit` uses. `options` must have a disk.
  Spiller(const SpillOptions& options, ByteBudget& memory, VisitSamples visit);
  ~Spiller();

  // The spill directory's space. The store passes it to the block homes whose blocks can be spilled.
  const std::shared_ptr<SpillArea>& area() const { return area_; }

  // Makes the background thread (or, without one, this thread) spill if more than `begin` of the budget is in use. Call
  // after storing anything. Cheap if there is nothing to do.
  void Look();
  // Spills until `bytes` of the memory budget are free. False if too little can be spilled, or if the disk fails or has
  // failed a short time ago. May wait for the disk, so the caller must not hold the lock of a sample.
  bool MakeRoom(int64_t bytes);

  Store::Totals::Spill GetTotals() const;

 private:
  struct Candidate {
    Clock::Time last_used;
    int64_t bytes = 0;
    std::shared_ptr<MemorySample> sample;
  };

  bool Above(double part) const {
    return static_cast<double>(memory_.used()) > part * static_cast<double>(memory_.limit());
  }
  bool Fits(int64_t bytes) const { return bytes <= memory_.limit() - memory_.used(); }
  void Run();
  // Spills until the use of the budget is down to `end`.
  void SpillCold();
  // Spills one sample. Returns false if no sample can be spilled.
  bool SpillOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  // Finds the least recently used samples whose bytes bring the use of the budget from `begin` down to `end`.
  void FindCandidates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  void Failed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);

  const SpillOptions options_;
  ByteBudget& memory_;
  const std::shared_ptr<SpillArea> area_;
  const VisitSamples visit_;

  Mutex spilling_;                                                // Held for one sample at a time.
  std::vector<Candidate> candidates_ ABSL_GUARDED_BY(spilling_);  // Least recently used last.
  std::chrono::steady_clock::time_point next_try_ ABSL_GUARDED_BY(spilling_);
  // Earliest time of the next search through all samples.
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(spilling_);
  bool failing_ ABSL_GUARDED_BY(spilling_) = false;

  Mutex mutex_;
  CondVar wanted_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> wanted_{false};
  std::thread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_SPILLER_H_
