// Which samples go to the disk when the memory budget gets short, and when.
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

// Spills sealed samples, those first that were not used for the longest time. Thread-safe.
class Spiller {
 public:
  // Calls its argument for all samples of the store.
  using VisitSamples = std::function<void(const std::function<void(std::shared_ptr<MemorySample>)>&)>;

  // `memory` outlives it, as must what `visit` looks at. Requires a disk.
  Spiller(const SpillOptions& options, ByteBudget& memory, VisitSamples visit);
  ~Spiller();

  // Where homes of blocks that can be spilled are to put them.
  const std::shared_ptr<SpillArea>& area() const { return area_; }

  // Something was stored. Cheap where there is nothing to do.
  void Look();
  // Spills until so many bytes of the memory budget are free: false if there is not enough to spill. Waits for the
  // disk: no lock of a sample may be held.
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
  // Spills down to `end`.
  void SpillCold();
  // Spills one sample; false if there is none that can be.
  bool SpillOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  // The coldest samples that together give back what is wanted.
  void FindCandidates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);
  void Failed(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(spilling_);

  const SpillOptions options_;
  ByteBudget& memory_;
  const std::shared_ptr<SpillArea> area_;
  const VisitSamples visit_;

  Mutex spilling_;                                                // Held for one sample at a time.
  std::vector<Candidate> candidates_ ABSL_GUARDED_BY(spilling_);  // The coldest is the last.
  std::chrono::steady_clock::time_point next_try_ ABSL_GUARDED_BY(spilling_);
  std::chrono::steady_clock::time_point next_look_ ABSL_GUARDED_BY(spilling_);  // At all samples.
  bool failing_ ABSL_GUARDED_BY(spilling_) = false;

  Mutex mutex_;
  CondVar wanted_changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> wanted_{false};
  std::thread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_SPILLER_H_
