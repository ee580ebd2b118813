// The store that keeps everything in memory, bounded by a byte budget. The default.
//
//   MemoryStore ─▶ MemoryRun ─▶ SampleIndex (16 shards) ─▶ MemorySample ─▶ RowPieces ─▶ counted blocks, charged to the
//   budget
//
// Samples are gone after a restart of the process; reads then say NOT_FOUND at once.
#ifndef SERVER_STORE_MEMORY_MEMORY_STORE_H_
#define SERVER_STORE_MEMORY_MEMORY_STORE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/content_ids.h"
#include "server/store/memory/run.h"
#include "server/store/store.h"

namespace routing_replay {

class MemoryStore final : public Store {
 public:
  // `budget` and `clock` must outlive the store; `budget` every snapshot too.
  explicit MemoryStore(ByteBudget& budget, const Clock& clock = Clock::Real(), HandleFunction handle_of = SampleHandle);
  ~MemoryStore() override;

  std::string name() const override { return "memory"; }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override;
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override;
  std::vector<RunState> ListRuns() override;
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override;
  absl::StatusOr<AppendAck> Append(AppendCommand command) override;
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override;
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override;
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows) override;
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override;
  absl::StatusOr<std::optional<bool>> MatchesTokens(absl::string_view run, Producer producer, const SampleRef& sample,
                                                    const TokenCheck& check) override;
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                int32_t page_size, absl::string_view page_token) override;
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override;
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override;
  int64_t Sweep(int64_t limit) override;
  Totals GetTotals() override;

 private:
  absl::StatusOr<std::shared_ptr<MemoryRun>> FindRun(absl::string_view run) const;
  absl::StatusOr<std::shared_ptr<MemorySample>> FindSample(absl::string_view run, Producer producer,
                                                           const SampleRef& sample) const;
  absl::StatusOr<std::shared_ptr<MemorySample>> FindById(absl::string_view run, Producer producer,
                                                         absl::string_view sample) const;
  std::vector<std::shared_ptr<MemoryRun>> AllRuns() const;

  ByteBudget& budget_;
  const Clock& clock_;
  const HandleFunction handle_of_;
  ContentIds content_ids_;

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<MemoryRun>> runs_ ABSL_GUARDED_BY(mutex_);
  size_t sweep_start_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_MEMORY_MEMORY_STORE_H_
