// One run of the memory store.
#ifndef SERVER_STORE_MEMORY_RUN_H_
#define SERVER_STORE_MEMORY_RUN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "server/store/memory/memory_store.h"
#include "server/store/memory/run_context.h"
#include "server/store/memory/sample.h"
#include "server/store/memory/sample_index.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Thread-safe. Methods mean what the same ones of Store mean.
class MemoryRun {
 public:
  // `record`: of RecordBytes, held until nobody holds the run any more.
  MemoryRun(std::shared_ptr<const RunContext> context, ByteReservation record, HandleFunction handle_of)
      : context_(std::move(context)), record_(std::move(record)), handle_of_(std::move(handle_of)), index_(context_) {}

  // What a run takes of the budget beside its samples.
  static int64_t RecordBytes(const RunInfo& info);

  const RunInfo& info() const { return context_->info; }
  int64_t record_bytes() const { return record_.bytes(); }
  RunState State() const;

  // A sample as it was found. RESOURCE_EXHAUSTED (kOverBudget), ALREADY_EXISTS (kHandleCollision).
  absl::Status Adopt(KeptSample sample);

  // At most so much of the budget will Append take beside the command's reservation.
  int64_t RoomFor(const AppendCommand& command) const;
  absl::StatusOr<AppendAck> Append(AppendCommand command);
  // Never null. NOT_FOUND (kNoSample).
  absl::StatusOr<std::shared_ptr<MemorySample>> Find(Producer producer, const SampleRef& ref) const;
  absl::StatusOr<ListPage> List(Producer producer, std::optional<GroupRange> groups, int32_t page_size,
                                absl::string_view page_token) const;

  absl::StatusOr<ReleaseResult> Release(std::optional<Producer> producer, absl::Span<const SampleRef> samples);
  absl::StatusOr<ReleaseResult> ReleaseGroups(std::optional<Producer> producer, GroupRange groups);
  std::unique_ptr<Store::Watch> WatchSample(Producer producer, const SampleRef& ref, std::function<void()> changed);
  // Calls `look` for every sample of one producer or the other; none is locked meanwhile.
  void Visit(const std::function<void(std::shared_ptr<MemorySample>)>& look) const;
  // Removes at most `limit` idle samples of one shard of the index.
  int64_t Sweep(size_t shard, int64_t limit);
  // Ends every sample. The run takes no new ones.
  ReleaseResult Drop();

 private:
  ParentRows FindParent(const AppendHeader& header) const;
  // Ends the sample if it is alive and was not used since.
  absl::Status RemoveOne(MemorySample& sample, Clock::Time unused_since, ReleaseResult& result);
  void Bury(MemorySample& sample, MemorySample::Remains remains, ReleaseResult& result);

  const std::shared_ptr<const RunContext> context_;
  const ByteReservation record_;
  const HandleFunction handle_of_;
  SampleIndex index_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_RUN_H_
