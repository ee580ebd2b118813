// A source of rows that were exported to a directory (proto/FORMAT.md, "Exported runs"): replay without the service.
#ifndef ROUTING_REPLAY_TRAINER_DIRECTORY_SOURCE_H_
#define ROUTING_REPLAY_TRAINER_DIRECTORY_SOURCE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/staging.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/read_request.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::trainer {

// Holds the index; a sample's rows are read when they are fetched, one sample at a time, and not kept. Exports may go
// on into the directory: a source finds its files until the second one after it was opened has ended, then those of
// samples that have not changed. Immutable; may be shared between threads.
class DirectorySource {
 public:
  // FAILED_PRECONDITION: kNotCommitted where no export has ended, kVersionMismatch; DATA_LOSS for a damaged index;
  // ALREADY_EXISTS (kHandleCollision) naming two samples with the same handle.
  static absl::StatusOr<std::unique_ptr<const DirectorySource>> Open(const std::filesystem::path& directory,
                                                                     const HandleFunction& handle_of = SampleHandle);
  ~DirectorySource();
  DirectorySource(const DirectorySource&) = delete;
  DirectorySource& operator=(const DirectorySource&) = delete;

  const Geometry& geometry() const;
  const std::string& run() const;
  Producer producer() const;
  // Ids, in the order of the index.
  std::vector<std::string> samples() const;

  // As LocalSource. Moreover DATA_LOSS (kChecksum) naming a sample whose file is not as it was written, and
  // INVALID_ARGUMENT naming one whose file was never as the index says. A read for another producer than the run's
  // finds no sample, and the record's message names both.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options) const;
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                   absl::Span<const FetchSequence> sequences, const FetchOptions& options) const;
  SampleRecord Inspect(const SampleRead& asked, Producer producer = Producer::kRollout) const;

 private:
  struct Entry;
  struct Contents;

  DirectorySource(std::filesystem::path directory, std::unique_ptr<const Contents> contents);
  const Entry* Find(const SampleRead& asked) const;

  const std::filesystem::path directory_;
  const std::unique_ptr<const Contents> contents_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_DIRECTORY_SOURCE_H_
