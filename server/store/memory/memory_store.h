// The index of samples and the rules of their lives, in memory; where blocks lie, and where changes are written before
// they count, is behind BlockHome and SampleJournal. NewMemoryStore keeps blocks in memory, too, and writes nothing:
// the default store, bounded by a byte budget. NewKeptStore is the same index over a RunKeeper, such as RocksDB's:
// there the budget bounds the index alone, and what is said below of a restart is not so.
//
//   MemoryStore ─▶ MemoryRun ─▶ SampleIndex (16 shards) ─▶ MemorySample ─▶ RowPieces ─▶ counted blocks, charged to the
//   budget
//
// Samples are gone after a restart of the process; reads then say NOT_FOUND at once. With a disk to spill to, the bytes
// of sealed samples that were not used for long go there when the budget gets short (spiller.h); what is known of them
// stays in memory, and so do samples that are not sealed.
#ifndef SERVER_STORE_MEMORY_MEMORY_STORE_H_
#define SERVER_STORE_MEMORY_MEMORY_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/clock.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/run_keeper.h"
#include "server/store/spill/spill_disk.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct SpillOptions {
  std::shared_ptr<SpillDisk> disk;            // None: nothing is spilled.
  int64_t budget_bytes = int64_t{64} << 30;   // Of the disk.
  int64_t segment_bytes = int64_t{64} << 20;  // Of one file.
  double begin = 0.75;                        // Once so much of the memory budget is in use …
  double end = 0.5;                           // … samples go until no more than this is.
  bool background = true;                     // On a thread of its own; otherwise whoever calls Look does the work.
  std::chrono::milliseconds pause{1000};      // After a failure, before the next try.
  std::function<void(const std::string&)> warn = [](const std::string&) {};  // Once for failures in a row. Any thread.
};

struct MemoryStoreOptions {
  const Clock* clock = &Clock::Real();             // Outlives the store.
  ByteBudget* budget = nullptr;                    // Required. Outlives the store and every snapshot.
  Clock::Duration default_ttl = RunOptions{}.ttl;  // Of runs that are made without options.
  HandleFunction handle_of = SampleHandle;         // Tests inject collisions here.
  SpillOptions spill;                              // Not of a kept store, whose blocks lie elsewhere already.
};

std::unique_ptr<Store> NewMemoryStore(MemoryStoreOptions options);

// The same with runs that outlive it: those that `keeper` has found, and all that are made. RESOURCE_EXHAUSTED
// (kOverBudget) if the budget cannot hold what must be in memory of them; ALREADY_EXISTS (kHandleCollision).
absl::StatusOr<std::unique_ptr<Store>> NewKeptStore(MemoryStoreOptions options,
                                                    const std::shared_ptr<RunKeeper>& keeper,
                                                    std::vector<KeptRun> runs);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_MEMORY_STORE_H_
