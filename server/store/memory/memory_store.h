// The index of samples and the rules of their lives, in memory; where blocks lie, and where changes are written before
// they count, is behind BlockHome and SampleJournal. NewMemoryStore keeps blocks in memory, too, and writes nothing:
// the default store, bounded by a byte budget. NewKeptStore is the same index over a RunKeeper, such as RocksDB's:
// there the budget bounds the index alone, and what is said below of a restart is not so.
//
//   MemoryStore ─▶ MemoryRun ─▶ SampleIndex (16 shards) ─▶ MemorySample ─▶ RowPieces ─▶ counted blocks, charged to the
//   budget
//
// Samples are gone after a restart of the process; reads then say NOT_FOUND at once. With a disk to spill to, the bytes
// of sealed samples that were not used for long go there when the budget gets short; what is known of them
// stays in memory, and so do samples that are not sealed.
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

// The next content of a sample. What it does not name stays as it was written before.
struct SampleChange {
  Producer producer = Producer::kRollout;
  absl::string_view sample;
  int32_t block_rows = kDefaultBlockRows;
  const SampleContent& lists;  // All but the pieces, which it need not have.
  int64_t first_window = 0;
  int64_t windows_before = 0;         // That were written before; those behind the content's end go.
  absl::Span<const RowPiece> pieces;  // All those of the windows from first_window on.
  absl::Span<const std::shared_ptr<StoredBlock>> added;
  bool grows = false;  // Has more rows than before, with or without bytes.
};

// What is written before a sample changes. Of one run. Thread-safe; changes of one sample come one after the other.
class SampleJournal {
 public:
  virtual ~SampleJournal() = default;

  // Wholly or not at all. When it returns, the change lasts as long as the run's durability says. RESOURCE_EXHAUSTED if
  // there is no room for it, UNAVAILABLE for other failures of what is written to, NOT_FOUND (kNoRun) once the run is
  // dropped; nothing is changed then.
  virtual absl::Status Write(const SampleChange& change) = 0;
  // The sample is in use now: told at the latest a TTL after a use that changed nothing.
  virtual absl::Status NoteUse(Producer producer, absl::string_view sample) = 0;
  // As Write, of a sample that ends.
  virtual absl::Status Remove(Producer producer, absl::string_view sample) = 0;
};

struct KeptSample {
  Producer producer = Producer::kRollout;
  std::string sample;
  Clock::Duration idle{0};  // Since a change or a use of it was written.
  SampleContent content;
};

// A run as it was found.
struct KeptRun {
  RunInfo info;
  std::shared_ptr<BlockHome> home;
  std::vector<KeptSample> samples;
};

// What makes the runs of a store outlive the process. Thread-safe; Create and Drop come one after the other, while the
// runs that are there are used. Errors as those of SampleJournal.
class RunKeeper {
 public:
  virtual ~RunKeeper() = default;

  virtual std::string name() const = 0;                             // Of the store.
  virtual absl::Status Health() const { return absl::OkStatus(); }  // As Store::Health.
  virtual DurabilityLevels durability() const = 0;
  // Between Begin and End, blocks that nobody holds any more are taken away. Before and after they stay: that a process
  // forgets them does not mean that nobody wants them.
  virtual void Begin() = 0;
  virtual void End() = 0;
  // Where a run that is not kept yet is to be.
  virtual absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo& run) = 0;
  // Whether something is kept of a run that cannot be served. It can be dropped, and not be made again before.
  virtual bool Damaged(absl::string_view /*run*/) const { return false; }
  // Gone once it returns OK, even if what the run takes goes later; an error: nothing has changed.
  virtual absl::Status Drop(absl::string_view run) = 0;
};

// A memory store with runs that outlive it: those that `keeper` has found, and all that are made. RESOURCE_EXHAUSTED
// (kOverBudget) if the budget cannot hold what must be in memory of them; ALREADY_EXISTS (kHandleCollision).
absl::StatusOr<std::unique_ptr<Store>> NewKeptStore(MemoryStoreOptions options,
                                                    const std::shared_ptr<RunKeeper>& keeper,
                                                    std::vector<KeptRun> runs);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_MEMORY_STORE_H_
