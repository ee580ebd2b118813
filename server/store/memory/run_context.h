// What the samples of one run share.
#ifndef SERVER_STORE_MEMORY_RUN_CONTEXT_H_
#define SERVER_STORE_MEMORY_RUN_CONTEXT_H_

#include <array>
#include <cstdint>
#include <memory>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/sample_journal.h"
#include "server/store/sample/content_ids.h"
#include "server/store/sample/stored_block.h"
#include "server/store/sample/stored_charge.h"
#include "server/store/store.h"
#include "server/store/watch_list.h"

namespace routing_replay::server {

// Locks that the samples of a run share, many samples to one: a lock of its own would be a good part of what a small
// sample takes. No two samples are ever locked together.
class SampleMutexes {
 public:
  Mutex& Of(int64_t handle) { return mutexes_[static_cast<uint64_t>(handle) % mutexes_.size()]; }

 private:
  std::array<Mutex, 509> mutexes_;  // Prime, so that samples of one shard of the index share none more than others.
};

// Budget, clock and content ids belong to the store and outlive it.
struct RunContext {
  RunInfo info;
  ByteBudget& budget;
  const Clock& clock;
  ContentIds& content_ids;
  std::shared_ptr<BlockHome> home = std::make_shared<MemoryHome>(std::make_shared<RunUsage>(budget));
  std::shared_ptr<SampleJournal> journal;  // None: samples do not outlive the process.
  std::shared_ptr<RunUsage> usage = home->usage();
  std::shared_ptr<SampleMutexes> mutexes = std::make_shared<SampleMutexes>();
  std::shared_ptr<WatchList> watches = std::make_shared<WatchList>();
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_RUN_CONTEXT_H_
