#include "server/operations/watched_store.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "server/operations/calls/call_journal.h"

namespace routing_replay::server {
namespace {

class WatchedStore final : public Store {
 public:
  WatchedStore(std::unique_ptr<Store> store, Metrics& metrics, NewestVersions& versions)
      : store_(std::move(store)), metrics_(metrics), versions_(versions) {}

  std::string name() const override { return store_->name(); }
  bool MayWait() const override { return store_->MayWait(); }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override {
    return Counted(store_->OpenRun(run, geometry, options));
  }
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override { return Counted(store_->GetRun(run)); }
  absl::StatusOr<RunInfo> KnownRun(absl::string_view run) override { return Counted(store_->KnownRun(run)); }
  absl::StatusOr<RunState> StatRun(absl::string_view run) override { return Counted(store_->StatRun(run)); }
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override {
    return Counted(store_->ListRuns(page_token, limit));
  }
  absl::StatusOr<int64_t> CountRuns() override { return Counted(store_->CountRuns()); }
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override {
    auto dropped = Counted(store_->DropRun(run));
    if (dropped.ok()) versions_.Drop(run);
    return dropped;
  }

  absl::StatusOr<AppendAck> Append(AppendCommand command) override {
    const std::string run = command.run;
    const Producer producer = command.header.producer;
    const int64_t version = command.header.weight_version;
    auto ack = Counted(store_->Append(std::move(command)));
    if (ack.ok()) versions_.Put(run, producer, version);
    return ack;
  }
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override {
    return Counted(store_->Seal(run, producer, sample, num_tokens, revision));
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    return Counted(store_->Truncate(run, producer, sample, rows, expected_revision));
  }

  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override {
    auto snapshot = Counted(store_->Snapshot(run, producer, sample, rows, admit));
    if (snapshot.ok()) {
      int64_t newest = kUnknownWeightVersion;
      for (const WeightSpan& span : snapshot->state.weights) newest = std::max(newest, span.version);
      versions_.Get(run, producer, newest);
    }
    return snapshot;
  }
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override {
    return Counted(store_->Stat(run, producer, sample));
  }
  absl::Status StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                        const TakeState& take) override {
    return store_->StatEach(run, producer, samples, [&](const SampleRef& sample, absl::StatusOr<SampleState> state) {
      return take(sample, Counted(std::move(state)));
    });
  }
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                int32_t page_size, absl::string_view page_token) override {
    return Counted(store_->List(run, producer, groups, page_size, page_token));
  }

  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples, ReleaseMode mode) override {
    return Counted(store_->Release(run, producer, samples, mode));
  }
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups, ReleaseMode mode) override {
    auto released = Counted(store_->ReleaseGroups(run, producer, groups, mode));
    // Everything from a group on: what a training goes back behind.
    const bool back = groups.end == INT64_MAX && mode == ReleaseMode::kNow;
    if (released.ok() && back) versions_.Drop(run);
    return released;
  }
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override {
    return Counted(store_->WatchSample(run, producer, sample, std::move(changed)));
  }

  int64_t Sweep(int64_t limit) override { return store_->Sweep(limit); }
  void Abandon() override { store_->Abandon(); }
  absl::Status Health() override { return store_->Health(); }
  Totals GetTotals() override { return store_->GetTotals(); }
  bool MakeRoom(int64_t bytes) override { return store_->MakeRoom(bytes); }

 private:
  template <typename T>
  absl::StatusOr<T> Counted(absl::StatusOr<T> result) {
    if (IsServersFault(result.status().code())) metrics_.CountStoreError(result.status().code());
    return result;
  }

  const std::unique_ptr<Store> store_;
  Metrics& metrics_;
  NewestVersions& versions_;
};

}  // namespace

std::unique_ptr<Store> WatchStore(std::unique_ptr<Store> store, Metrics& metrics, NewestVersions& versions) {
  return std::make_unique<WatchedStore>(std::move(store), metrics, versions);
}

}  // namespace routing_replay::server
