// What makes the runs of a memory store outlive the process: where its blocks and samples are written to.
#ifndef SERVER_STORE_MEMORY_RUN_KEEPER_H_
#define SERVER_STORE_MEMORY_RUN_KEEPER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"
#include "server/store/sample/row_pieces.h"
#include "server/store/sample/sample_content.h"
#include "server/store/store.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {

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

// Where a run's blocks and samples go.
struct RunStorage {
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
  RunStorage storage;
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
  virtual absl::StatusOr<RunStorage> Create(const RunInfo& run) = 0;
  // Whether something is kept of a run that cannot be served. It can be dropped, and not be made again before.
  virtual bool Damaged(absl::string_view /*run*/) const { return false; }
  // Gone once it returns OK, even if what the run takes goes later; an error: nothing has changed.
  virtual absl::Status Drop(absl::string_view run) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_RUN_KEEPER_H_
