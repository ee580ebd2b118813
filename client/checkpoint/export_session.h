// What an export decides. Knows no gRPC: whoever drives it lists, asks and reads.
//
//   Open → list → OnList → while Next names samples: Stat them, read them, OnRows → Finish
#ifndef CLIENT_CHECKPOINT_EXPORT_SESSION_H_
#define CLIENT_CHECKPOINT_EXPORT_SESSION_H_

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/reader/row_planes.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/checkpoint.h"

namespace routing_replay::client {

// Not thread-safe.
class ExportSession {
 public:
  struct Scope {
    std::optional<std::pair<int64_t, int64_t>> groups;
    Producer producer = Producer::kRollout;
    bool drop_missing = false;
  };

  // Errors of RunExporter::Continue. `files` must outlive the session.
  static absl::StatusOr<std::unique_ptr<ExportSession>> Open(const std::filesystem::path& directory,
                                                             const std::string& run, const Geometry& geometry,
                                                             const Scope& scope,
                                                             DurableFiles& files = DurableFiles::Real());

  // Whether the list must be of all groups: a sample that is in none of the scope's any more is not missing.
  bool lists_all_groups() const { return scope_.drop_missing; }
  // All samples of the run in the scope's groups, or of all groups.
  void OnList(absl::Span<const SampleState> samples);
  // The samples to be read now, whole and of all layers. Empty: Finish.
  const std::vector<std::string>& Next();
  // `states` are those that exist of Next, asked before the read; `read` is one entry per name of Next, in that order.
  // Samples that changed in between come again, ones that are not there or not sealed any more do not, nor ones of
  // which unread() then tells. Errors of RunExporter::Add.
  absl::Status OnRows(absl::Span<const SampleState> states, absl::Span<SamplePlanes> read);
  absl::StatusOr<ExportOutcome> Finish();
  // What kept a sample out, while all others are in: DATA_LOSS for the first that was lost, ABORTED for one that
  // changes whenever it is read.
  const absl::Status& unread() const { return unread_; }

  const CheckpointProgress& progress() const { return progress_; }
  Producer producer() const { return scope_.producer; }

 private:
  struct Wanted {
    std::string sample;
    int64_t bytes = 0;
    int attempts = 0;
  };

  ExportSession(std::unique_ptr<RunExporter> exporter, const Scope& scope)
      : exporter_(std::move(exporter)), scope_(scope) {}

  void OnSealed(const SampleState& state);
  absl::Status OnSample(Wanted wanted, const SampleState* state, SamplePlanes& read);
  absl::Status Write(const SampleState& state, const SamplePlanes& read);
  // The planes of a sample as rows: [layers][rows][K] → [rows][layers][K].
  std::vector<uint8_t> RowMajor(const SamplePlanes& read) const;

  const std::unique_ptr<RunExporter> exporter_;
  const Scope scope_;
  std::deque<Wanted> queue_;
  std::vector<Wanted> reading_;
  std::vector<std::string> names_;  // … of these.
  absl::Status unread_;
  CheckpointProgress progress_;
  ExportOutcome outcome_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_EXPORT_SESSION_H_
