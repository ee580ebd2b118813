#include "server/operations/census.h"

#include <algorithm>

namespace routing_replay::server {
namespace {

constexpr int64_t kPage = 1000;
constexpr size_t kRunPage = 1000;

void Add(const SampleState& sample, Census::Run& run, Census& census) {
  ++run.looked_at;
  ++census.looked_at;
  census.oldest_idle_ms = std::max(census.oldest_idle_ms, sample.idle_ms);
  std::map<int64_t, int64_t> rows;
  for (const WeightSpan& span : sample.weights) rows[span.version] += span.rows.size();
  for (const auto& [version, count] : rows) {
    Census::Share& share = run.by_version[version];
    ++share.samples;
    share.rows += count;
    share.bytes += static_cast<int64_t>(static_cast<double>(sample.stored_bytes) * static_cast<double>(count) /
                                        static_cast<double>(sample.committed_rows));
  }
}

absl::Status LookAt(Store& store, Producer producer, int64_t limit, const std::function<bool()>& stop, Census::Run& run,
                    Census& census) {
  std::string token;
  do {
    if (stop()) return absl::CancelledError("the census was stopped");
    const int64_t size = std::min(kPage, limit - run.looked_at);
    if (size <= 0) break;
    const auto page = store.List(run.run, producer, std::nullopt, static_cast<int32_t>(size), token);
    if (absl::IsNotFound(page.status())) break;  // Dropped meanwhile.
    if (!page.ok()) return page.status();
    for (const SampleState& sample : page->samples) Add(sample, run, census);
    token = page->next_token;
  } while (!token.empty());
  return absl::OkStatus();
}

absl::Status LookAt(Store& store, const RunState& state, int64_t limit, const std::function<bool()>& stop,
                    Census& census) {
  Census::Run run{.run = state.info.run,
                  .samples = state.samples,
                  .sealed_samples = state.sealed_samples,
                  .committed_rows = state.committed_rows,
                  .stored_bytes = state.stored_bytes};
  for (const Producer producer : {Producer::kRollout, Producer::kTrainer}) {
    absl::Status status = LookAt(store, producer, limit, stop, run, census);
    if (!status.ok()) return status;
  }
  census.samples += run.samples;
  census.runs.push_back(std::move(run));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Census> TakeCensus(Store& store, int64_t limit, const std::function<bool()>& stop) {
  const auto runs = store.CountRuns();
  if (!runs.ok()) return runs.status();
  Census census;
  const int64_t limit_of_run = std::max<int64_t>(1, limit / std::max<int64_t>(1, *runs));
  std::string token;
  do {
    const auto page = store.ListRuns(token, kRunPage);
    if (!page.ok()) return page.status();
    for (const RunState& state : page->runs) {
      absl::Status status = LookAt(store, state, limit_of_run, stop, census);
      if (!status.ok()) return status;
    }
    token = page->next_token;
  } while (!token.empty());
  return census;
}

}  // namespace routing_replay::server
