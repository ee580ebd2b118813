// Shared by export, import and verify: the samples of a run in portions, and those of some groups.
#ifndef CLIENT_CHECKPOINT_RUN_PORTIONS_H_
#define CLIENT_CHECKPOINT_RUN_PORTIONS_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/caller.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

inline constexpr std::chrono::seconds kPortionTimeout(120);  // For reading one portion.

// Calls `process` with all samples in portions: some tens of MB, or a single larger sample. Returns the first error of
// `process`, or that of Run::List if a server has lost the run, which also explains why it did not answer. So if the
// result is OK, samples that `process` did not find were released meanwhile.
template <typename Process>
absl::Status ForEachPortion(Run& run, Producer producer, absl::Span<const SampleState> samples,
                            const Process& process) {
  constexpr int64_t kPortionBytes = int64_t{32} << 20;
  constexpr std::pair<int64_t, int64_t> kNone{0, 0};
  while (!samples.empty()) {
    size_t count = 0;
    for (int64_t bytes = 0; count < std::min(samples.size(), kMaxNamesPerCall); ++count) {
      bytes += samples[count].committed_rows * run.geometry().raw_row_bytes();
      if (count > 0 && bytes > kPortionBytes) break;
    }
    const absl::Status done = process(samples.first(count));
    if (absl::IsUnavailable(done)) RR_RETURN_IF_ERROR(run.List(kNone, producer).status());
    RR_RETURN_IF_ERROR(done);
    samples.remove_prefix(count);
  }
  return run.List(kNone, producer).status();
}

// UNAVAILABLE if the server that has the sample did not answer, which a read of several servers reports as a record.
inline absl::Status CheckAnswered(const SampleRecord& record, absl::string_view sample) {
  if (record.status != SampleStatus::kUnavailable) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("sample ", sample, ": ", record.message));
}

inline bool InGroups(const std::optional<std::pair<int64_t, int64_t>>& groups, int64_t group) {
  return !groups || (group >= groups->first && group < groups->second);
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_RUN_PORTIONS_H_
