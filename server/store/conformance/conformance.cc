#include "server/store/conformance/conformance.h"

#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

const Geometry& TestGeometry() {
  static const Geometry geometry = *Geometry::Create(
      {.num_layers = 4, .moe_layer_ids = {1, 2, 3}, .num_experts = {60, 300, 128}, .top_k = {4, 2, 3}});
  return geometry;
}

std::string Describe(const SampleState& state) {
  std::string text =
      absl::StrCat(state.sample, " handle ", state.handle, " ", ProducerName(state.producer), " group ", state.group,
                   " rows ", state.committed_rows, " T ", state.num_tokens.value_or(-1), " revision ", state.revision,
                   " content ", state.content_id, " engine ", state.engine);
  for (RowRange range : state.unrecorded) absl::StrAppend(&text, " unrecorded ", ToString(range));
  for (const WeightSpan& span : state.weights) {
    absl::StrAppend(&text, " weights ", ToString(span.rows), " ", span.version, " ", span.label);
  }
  if (state.token_check) absl::StrAppend(&text, " check ", state.token_check->rows, " ", state.token_check->crc32c);
  return text;
}

void StoreConformance::Remake(int64_t budget, std::function<int64_t(absl::string_view)> handle_of) {
  store_.reset();
  budget_ = std::make_unique<ByteBudget>(budget);
  store_ = GetParam().make(*budget_, clock_, std::move(handle_of));
  run_ = OpenRun("run", {.block_rows = kWindow});
}

RunInfo StoreConformance::OpenRun(const std::string& run, RunOptions options) {
  absl::StatusOr<RunInfo> info = store_->OpenRun(run, &TestGeometry(), options);
  EXPECT_OK(info);
  return info.ok() ? *info : RunInfo{};
}

void StoreConformance::ReopenRun(RunOptions options) {
  EXPECT_OK(store_->DropRun("run"));
  run_ = OpenRun("run", options);
}

void StoreConformance::HearOthers(const std::string& sample) {
  if (GetParam().watches_hear_at_once) return;
  std::atomic<int> heard{0};  // If calls alternate between two servers, both must have received the change.
  const auto one = *store_->WatchSample("run", Producer::kRollout, {.sample = sample}, [&] { ++heard; });
  const auto other = *store_->WatchSample("run", Producer::kRollout, {.sample = sample}, [&] { ++heard; });
  const Clock::Time deadline = Clock::Real().Now() + std::chrono::seconds(2);
  while (heard < 2 && Clock::Real().Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void StoreConformance::Await(const std::function<bool()>& condition) {
  const Clock::Time deadline = Clock::Real().Now() + std::chrono::seconds(GetParam().one_server ? 0 : 10);
  while (!condition() && Clock::Real().Now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void StoreConformance::Fill(const std::string& sample, int64_t rows) {
  EXPECT_OK(Append({.sample = sample, .rows = {0, rows}}));
}

SampleState StoreConformance::Stat(const std::string& sample, Producer producer) {
  absl::StatusOr<SampleState> state = store_->Stat("run", producer, {.sample = sample});
  EXPECT_OK(state);
  return state.ok() ? *state : SampleState{};
}

bool StoreConformance::Exists(const std::string& sample, Producer producer) {
  return store_->Stat("run", producer, {.sample = sample}).ok();
}

Rows StoreConformance::Read(const std::string& sample, Producer producer) {
  const std::vector<RowRange> all{{0, kMaxRows}};
  absl::StatusOr<SampleSnapshot> snapshot = store_->Snapshot("run", producer, {.sample = sample}, all);
  EXPECT_OK(snapshot);
  if (!snapshot.ok()) return {};
  absl::StatusOr<Rows> rows = RowsOf(geometry(), *snapshot);
  EXPECT_OK(rows);
  return rows.ok() ? *rows : Rows{};
}

SampleLook StoreConformance::Look(const std::string& sample) {
  if (!Exists(sample)) return {};
  return {Describe(Stat(sample)), Read(sample)};
}

std::vector<RowRange> StoreConformance::Blocks(const std::string& sample) {
  const std::vector<RowRange> all{{0, kMaxRows}};
  absl::StatusOr<SampleSnapshot> snapshot = store_->Snapshot("run", Producer::kRollout, {.sample = sample}, all);
  EXPECT_OK(snapshot);
  std::vector<RowRange> blocks;
  for (const StoredRows& stored : snapshot->rows) {
    EXPECT_EQ(stored.rows, stored.block->rows());
    blocks.push_back(stored.block->rows());
  }
  return blocks;
}

ErrorDetail StoreConformance::Rejected(const AppendSpec& spec, absl::StatusCode code, Reason reason) {
  const SampleLook before = Look(spec.sample);
  const int64_t used = Used();
  const Store::Totals totals = store_->GetTotals();
  const absl::StatusOr<AppendAck> ack = Append(spec);
  EXPECT_THAT(ack, Fails(code, reason));
  EXPECT_EQ(Look(spec.sample), before);
  EXPECT_EQ(Used(), used);
  EXPECT_EQ(store_->GetTotals().samples, totals.samples);
  EXPECT_EQ(store_->GetTotals().stored_bytes, totals.stored_bytes);
  const std::optional<ErrorDetail> detail = GetErrorDetail(ack.status());
  if (Exists(spec.sample) && detail) {
    EXPECT_EQ(detail->revision, Stat(spec.sample).revision);
    EXPECT_TRUE(detail->committed_rows.has_value());
  }
  return detail.value_or(ErrorDetail{});
}

}  // namespace routing_replay::testing
