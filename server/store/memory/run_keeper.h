// What makes the runs of a memory store outlive the process.
#ifndef SERVER_STORE_MEMORY_RUN_KEEPER_H_
#define SERVER_STORE_MEMORY_RUN_KEEPER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/memory/sample_journal.h"
#include "server/store/sample/sample_content.h"
#include "server/store/sample/stored_block.h"
#include "server/store/store.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

// Where a run's blocks and samples go.
struct RunPlace {
  std::shared_ptr<BlockHome> home;
  std::shared_ptr<SampleJournal> journal;
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
  RunPlace place;
  std::vector<KeptSample> samples;
};

// Thread-safe; Create and Drop come one after the other, while the runs that are there are used. Errors as those of
// SampleJournal.
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
  // A run that is not kept yet.
  virtual absl::StatusOr<RunPlace> Create(const RunInfo& run) = 0;
  // Whether something is kept of a run that cannot be served. It can be dropped, and not be made anew before.
  virtual bool Damaged(absl::string_view /*run*/) const { return false; }
  // Gone once it returns OK, even if what the run takes goes later; an error: nothing has changed.
  virtual absl::Status Drop(absl::string_view run) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_RUN_KEEPER_H_
