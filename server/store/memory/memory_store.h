// The index of samples, in memory, and what happens to them from their creation to their removal. A BlockHome decides
// where blocks are stored, and a SampleJournal where changes are written before they take effect. NewMemoryStore keeps
// blocks in memory, too, and has no journal: it is the default store, bounded by a byte budget. NewKeptStore uses the
// same index over a RunKeeper, such as RocksDB's: the budget then bounds the index alone, and samples survive a
// restart.
//
//   MemoryStore ─▶ MemoryRun ─▶ SampleIndex (16 shards) ─▶ MemorySample ─▶ RowPieces ─▶ blocks, charged to the budget
//
// Without a RunKeeper, samples are gone after a restart of the process; reads then return NOT_FOUND at once. With a
// spill directory, the bytes of the least recently used sealed samples move there when the budget runs short. Their
// state stays in memory, and so do unsealed samples.
#ifndef SERVER_STORE_MEMORY_MEMORY_STORE_H_
#define SERVER_STORE_MEMORY_MEMORY_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "routing_replay/wire/sample.h"
#include "server/admission/byte_budget.h"
#include "server/store/row_pieces.h"
#include "server/store/sample_rules.h"
#include "server/store/spill/spill.h"
#include "server/store/store.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

struct SpillOptions {
  std::shared_ptr<SpillDisk> disk;            // Null: nothing is spilled.
  int64_t budget_bytes = int64_t{64} << 30;   // Limit on the disk.
  int64_t segment_bytes = int64_t{64} << 20;  // About the size of one file.
  double begin = 0.75;                        // When this share of the memory budget is in use …
  double end = 0.5;                           // … samples are spilled until only this share is.
  bool background = true;                     // Spill on a separate thread; if false, Spiller::Look does the work.
  std::chrono::milliseconds pause{1000};      // Time until the next try after a failure.
  // Called by any thread when spilling fails. Failures that follow each other without a success cause only one call.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

struct MemoryStoreOptions {
  const Clock* clock = &Clock::Real();             // Must outlive the store.
  ByteBudget* budget = nullptr;                    // Required. Must outlive the store and every snapshot.
  Clock::Duration default_ttl = RunOptions{}.ttl;  // For runs that are opened without options.
  HandleFunction handle_of = SampleHandle;         // Tests inject collisions here.
  SpillOptions spill;                              // Not used by NewKeptStore, whose blocks are stored elsewhere.
};

std::unique_ptr<Store> NewMemoryStore(MemoryStoreOptions options);

// The next content of a sample. What this struct does not contain, such as the pieces of windows before first_window,
// stays as it was written before.
struct SampleChange {
  Producer producer = Producer::kRollout;
  absl::string_view sample;
  int32_t block_rows = kDefaultBlockRows;
  const SampleContent& lists;         // The next content. Its own `pieces` are not used.
  int64_t first_window = 0;           // The first window that may change.
  int64_t windows_before = 0;         // Number of windows so far. Those after the next content's end are removed.
  absl::Span<const RowPiece> pieces;  // All pieces of the windows from first_window on.
  absl::Span<const std::shared_ptr<StoredBlock>> added;  // The blocks of `pieces` that are not written yet.
  bool grows = false;                                    // The sample gets more rows, recorded or not.
};

// Writes the changes of a run's samples before they take effect. Thread-safe; the changes of one sample are written one
// after the other.
class SampleJournal {
 public:
  virtual ~SampleJournal() = default;

  // When it returns OK, the change is as durable as the run's durability says. After an error nothing is changed:
  // RESOURCE_EXHAUSTED if there is no room for it, UNAVAILABLE for other failures of the storage, NOT_FOUND (kNoRun)
  // once the run is dropped.
  virtual absl::Status Write(const SampleChange& change) = 0;
  // Like Write, for a sample that is removed.
  virtual absl::Status Remove(Producer producer, absl::string_view sample) = 0;
  // Frees the space of removed samples if the storage lacks room. Called by every Sweep of the store, by one thread at
  // a time.
  virtual void FreeSpace() = 0;
};

struct KeptSample {
  Producer producer = Producer::kRollout;
  std::string sample;
  SampleContent content;
};

// A run that the storage had when the process started.
struct KeptRun {
  RunInfo info;
  std::shared_ptr<BlockHome> home;
  std::vector<KeptSample> samples;
};

// Stores runs so that they outlive the process. Thread-safe. Only one Create or Drop runs at a time; other threads may
// use existing runs meanwhile. Errors as those of SampleJournal.
class RunKeeper {
 public:
  virtual ~RunKeeper() = default;

  virtual std::string name() const = 0;                             // Name of the store.
  virtual absl::Status Health() const { return absl::OkStatus(); }  // See Store::Health.
  virtual DurabilityLevels durability() const = 0;
  // Between Begin and End, blocks that nobody holds are deleted from the storage. Before Begin and after End they are
  // kept, because the process also releases blocks when it starts and stops.
  virtual void Begin() = 0;
  virtual void End() = 0;
  // Stores a new run and returns its home. DATA_LOSS if the run is Damaged.
  virtual absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo& run) = 0;
  // True if the storage has a damaged run of that name, which cannot be served. It must be dropped before it can be
  // created again.
  virtual bool Damaged(absl::string_view /*run*/) const { return false; }
  // When it returns OK the run is gone, even if its space is freed later; on an error nothing has changed.
  virtual absl::Status Drop(absl::string_view run) = 0;
};

// A memory store whose runs survive the process. It starts with `runs`, which `keeper` has found in its storage.
// RESOURCE_EXHAUSTED (kOverBudget) if the budget cannot hold the part that must be in memory; ALREADY_EXISTS
// (kHandleCollision).
absl::StatusOr<std::unique_ptr<Store>> NewKeptStore(MemoryStoreOptions options,
                                                    const std::shared_ptr<RunKeeper>& keeper,
                                                    std::vector<KeptRun> runs);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_MEMORY_STORE_H_
