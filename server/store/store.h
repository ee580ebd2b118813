// The interface of a store. A store keeps the committed rows of samples, separately for each run and producer. Every
// implementation must pass the tests in conformance/.
//
// Steps of an append, the same in every store (conformance/ tests each one):
//   1. the append must open the sample, or restart it, or name its current revision or restart nonce
//   2. in the overlap with committed rows, tokens are compared (other tokens: ALREADY_EXISTS), then routes (differences
//      are counted; in a strict run they are an error); then the overlap is trimmed, because the first write wins
//   3. the remaining rows must start at the committed count (otherwise GAP), and the sample must not be sealed
//   4. the pieces of a completed window are merged; memory is charged to the budget, and the blocks are stored
//   5. the sample is sealed, if the append says so
// An append that is rejected at any step changes nothing at all.
#ifndef SERVER_STORE_STORE_H_
#define SERVER_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"
#include "server/admission/byte_budget.h"
#include "server/store/token_checks.h"

namespace routing_replay::server {

// The bytes of a block: `view` is valid as long as `owner` is held.
struct LoadedBlock {
  std::shared_ptr<const void> owner;
  BlockView view;
};

// A block in the store; its bytes are in memory, on a disk or in Redis. Except in Redis, it stays readable while
// somebody holds it, even if its sample is released. Thread-safe. Members are small: a run may have millions of blocks.
class KeptBlock {
 public:
  // `rows` lie in one window.
  KeptBlock(RowRange rows, Codec codec)
      : first_row_(rows.begin), num_rows_(static_cast<int32_t>(rows.size())), codec_(codec) {}
  virtual ~KeptBlock() = default;

  RowRange rows() const { return {first_row_, first_row_ + num_rows_}; }
  Codec codec() const { return codec_; }

 private:
  friend absl::StatusOr<LoadedBlock> Load(std::shared_ptr<const KeptBlock> block);

  // Returns the bytes. If LoadedBlock::owner is null, the block itself owns them.
  virtual absl::StatusOr<LoadedBlock> LoadBytes() const = 0;

  const int64_t first_row_;
  const int32_t num_rows_;
  const Codec codec_;
};

// Reads the bytes of a block, from a disk or a network if necessary; the caller must check the planes' CRCs. DATA_LOSS
// if the store has lost or damaged them; UNAVAILABLE if they cannot be read now, or if Redis deleted a replaced block.
inline absl::StatusOr<LoadedBlock> Load(std::shared_ptr<const KeptBlock> block) {
  absl::StatusOr<LoadedBlock> loaded = block->LoadBytes();
  if (loaded.ok() && loaded->owner == nullptr) loaded->owner = std::move(block);
  return loaded;
}

// The settings in force for a run; fixed when it is created.
struct RunOptions {
  Clock::Duration ttl = std::chrono::hours(24);  // Sweep removes a sample that was idle for this long.
  bool strict = false;
  int32_t block_rows = kDefaultBlockRows;
  Codec codec = Codec::kRaw;
  std::optional<Durability> durability;  // Always set for an existing run. In a request it may be empty: see OpenRun.
  // Fingerprint of the list of servers that the run is spread over; 0: the run is on one server.
  uint64_t shard_fingerprint = 0;
  friend bool operator==(const RunOptions&, const RunOptions&) = default;
};

struct RunInfo {
  std::string run;
  std::shared_ptr<const Geometry> geometry;  // A new object if the run is dropped and created again.
  RunOptions options;
  bool created = false;  // True if this call created the run.
};

struct RunState {
  RunInfo info;
  int64_t samples = 0;
  int64_t sealed_samples = 0;
  int64_t committed_rows = 0;
  int64_t stored_bytes = 0;
};

struct RunPage {
  std::vector<RunState> runs;  // By name, ascending.
  std::string next_token;      // Empty: the end.
};

// Names a sample by its id or, if `sample` is empty, by its handle.
struct SampleRef {
  std::string sample;
  int64_t handle = 0;
};

struct AppendCommand {
  std::string run;
  // The geometry that the blocks were made with. If the run was since dropped and created again with another one, the
  // append is rejected (FAILED_PRECONDITION, kGeometryMismatch). Null if there are no blocks.
  std::shared_ptr<const Geometry> geometry;
  AppendHeader header;  // payload_kind is ignored.
  // Hold exactly the rows of header.rows without header.unrecorded, ascending. The caller has checked their CRCs.
  std::vector<Block> blocks;
  ByteReservation reservation;  // For the payload. The store spends it before it reserves more.
};

// Some rows of a block.
struct StoredRows {
  std::shared_ptr<const KeptBlock> block;
  RowRange rows;  // Absolute, inside block->rows().
};

// A sample at one moment.
struct SampleSnapshot {
  SampleState state;
  std::vector<StoredRows> rows;  // Ascending; exactly the requested rows that are committed and recorded.
  TokenChecks tokens{kDefaultBlockRows};
};

// Called before a sample's state is copied into a snapshot. `bytes` is about the memory of the snapshot and of the
// answer to a reader that is made of it. If AdmitSnapshot returns an error, Snapshot returns that error.
using AdmitSnapshot = std::function<absl::Status(int64_t bytes)>;

// Half-open range of groups.
struct GroupRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool contains(int64_t group) const { return begin <= group && group < end; }
};

struct ReleaseResult {
  int64_t samples = 0;
  int64_t bytes = 0;  // Freed by this call, in the budget or in Redis.
};

struct ListPage {
  std::vector<SampleState> samples;  // By sample id, ascending.
  std::string next_token;            // Empty: the end.
};

// Thread-safe. Calls of one sample are applied one after the other; calls of different samples run in parallel.
// Errors carry an ErrorDetail. NOT_FOUND: kNoRun or kNoSample.
class Store {
 public:
  virtual ~Store() = default;

  virtual std::string name() const = 0;  // "memory", …
  // True if its calls may wait for a disk or a network.
  virtual bool MayWait() const { return true; }

  // Creates the run, or joins it if it exists. RESOURCE_EXHAUSTED (kOverBudget) if there is no room for the run's own
  // record. Joining with another geometry (or other options, where given): FAILED_PRECONDITION (kGeometryMismatch). If
  // `geometry` is null and there is no such run: NOT_FOUND. Without options, a new run has the store's defaults.
  // Options without a durability mean the store's default for a new run, and any durability for an existing one.
  virtual absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                          const std::optional<RunOptions>& options) = 0;
  virtual absl::StatusOr<RunInfo> GetRun(absl::string_view run) = 0;
  // GetRun for callers that append next: a run that this process knows is returned without access to disk or network.
  // It may be out of date if another process has dropped the run. The append then goes to the new run of that name if
  // its blocks fit there, and is rejected otherwise.
  virtual absl::StatusOr<RunInfo> KnownRun(absl::string_view run) { return GetRun(run); }
  // The run and the totals of its samples.
  virtual absl::StatusOr<RunState> StatRun(absl::string_view run) = 0;
  // At most `limit` (above 0) runs, by name. A run whose record cannot be read is left out; others are listed.
  virtual absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) = 0;
  // All runs.
  absl::StatusOr<std::vector<RunState>> ListRuns() {
    absl::StatusOr<RunPage> all = ListRuns("", SIZE_MAX);
    if (!all.ok()) return all.status();
    return std::move(all->runs);
  }
  // About the number of runs that ListRuns() returns, without reading their records.
  virtual absl::StatusOr<int64_t> CountRuns() = 0;
  virtual absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) = 0;

  // The ack has no append_id. Errors: FAILED_PRECONDITION (kGap, kOldRevision, kSealed, kNotCommitted, kLength,
  // kGeometryMismatch, kField if the sample has another prefix), ALREADY_EXISTS (kOtherTokens, kConflictingRows,
  // kHandleCollision), RESOURCE_EXHAUSTED (kOverBudget), INVALID_ARGUMENT (kRowCount, kField, kLength), DATA_LOSS (for
  // damaged stored rows). An error that depends on the sample's content has its committed_rows and revision.
  virtual absl::StatusOr<AppendAck> Append(AppendCommand command) = 0;
  // Errors: FAILED_PRECONDITION (kOldRevision, kSealed if it was sealed with another num_tokens, kNotCommitted),
  // INVALID_ARGUMENT (kRowCount: num_tokens is below 1 or too small), RESOURCE_EXHAUSTED, DATA_LOSS as in Append.
  virtual absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                           int64_t num_tokens, int64_t revision) = 0;
  // Errors: OUT_OF_RANGE (kNotCommitted), FAILED_PRECONDITION (kOldRevision), INVALID_ARGUMENT (kField: below 0).
  virtual absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample,
                                               int64_t rows, std::optional<int64_t> expected_revision) = 0;

  // The sample's state and its recorded rows inside `rows` (normal list). Counts as a use: the TTL begins again.
  // `admit` may be null.
  virtual absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                                  absl::Span<const RowRange> rows, const AdmitSnapshot& admit) = 0;
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows) {
    return Snapshot(run, producer, sample, rows, nullptr);
  }
  // The state alone. Does not count as a use of the sample.
  virtual absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) = 0;
  // Calls `take` with the Stat of each sample, in the order of `samples`. Redis needs fewer round trips than for single
  // Stats. If `take` returns an error, StatEach ends with that error.
  using TakeState = std::function<absl::Status(const SampleRef& sample, absl::StatusOr<SampleState> state)>;
  virtual absl::Status StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                                const TakeState& take) {
    for (const SampleRef& sample : samples) {
      if (absl::Status taken = take(sample, Stat(run, producer, sample)); !taken.ok()) return taken;
    }
    return absl::OkStatus();
  }
  // A page has at most `limit` (above 0) samples, and fewer if they take more than about a megabyte.
  virtual absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                        size_t limit, absl::string_view page_token) = 0;

  // Unknown samples are skipped. Without a producer, the samples of both are released.
  virtual absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                                absl::Span<const SampleRef> samples) = 0;
  virtual absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                                      GroupRange groups) = 0;

  // Calls `changed` once, from any thread and without a lock held, after the next change of the sample (append, seal,
  // truncate, release, drop; also its creation). Register first and then call Snapshot, so that no change is missed. In
  // a store that several servers share, a new watch needs a moment before it notices changes by other servers. After
  // that moment it may call `changed` without a change, in case it missed one. The watch ends with the returned object:
  // once that is destroyed, `changed` is not running and will not run. `changed` may call the store, but must not
  // destroy its own watch.
  class Watch {
   public:
    virtual ~Watch() = default;
  };
  virtual absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer,
                                                             const SampleRef& sample,
                                                             std::function<void()> changed) = 0;

  // Removes samples idle longer than their run's TTL, at most `limit` of them, and returns how many.
  virtual int64_t Sweep(int64_t limit) = 0;

  // OK, or the reason why the store cannot make any change now: its disk or Redis is broken or cannot be reached. A
  // full budget, or damage to a part of the data, is still OK. May wait a few seconds at most. The message may be shown
  // to everybody.
  virtual absl::Status Health() { return absl::OkStatus(); }

  // Totals of the store. While Redis does not answer, GetTotals returns those of its last call that succeeded.
  struct Totals {
    int64_t runs = 0;
    int64_t samples = 0;
    int64_t stored_bytes = 0;  // Size of committed data: charged to the budget, or in Redis.
    int64_t run_bytes = 0;     // Charged to the budget for the records of runs.
    // For a store that moves cold samples to a disk.
    struct Spill {
      int64_t budget_bytes = 0;  // Limit of the spill directory.
      int64_t disk_bytes = 0;    // Bytes that the files there take.
      // The counts below begin when the store is made.
      int64_t samples = 0;         // Samples moved.
      int64_t bytes = 0;           // Memory that these moves freed.
      int64_t loads = 0;           // Blocks read back.
      int64_t lost_blocks = 0;     // Loads that found damaged or missing bytes.
      int64_t write_failures = 0;  // Failed moves of a block: the disk is full or broken, or the limit is reached.
    };
    std::optional<Spill> spill;
  };
  virtual Totals GetTotals() = 0;

  // Moves cold data to a disk until `bytes` of the budget are free; waits for the disk. False if too little could be
  // moved, or if the store has no such disk.
  virtual bool MakeRoom(int64_t /*bytes*/) { return false; }
};

// ByteBudget::Reserve on the budget of `store`; if there is no room, the store makes room first.
inline absl::StatusOr<ByteReservation> ReserveOrMakeRoom(Store& store, ByteBudget& budget, int64_t bytes) {
  absl::StatusOr<ByteReservation> reservation = budget.Reserve(bytes);
  if (reservation.ok() || !store.MakeRoom(bytes)) return reservation;
  return budget.Reserve(bytes);
}

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_H_
