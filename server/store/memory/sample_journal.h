// What a store that outlives its process writes before a sample changes.
#ifndef SERVER_STORE_MEMORY_SAMPLE_JOURNAL_H_
#define SERVER_STORE_MEMORY_SAMPLE_JOURNAL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample_id.h"
#include "server/store/sample/sample_content.h"
#include "server/store/sample/stored_block.h"

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

// Of one run. Thread-safe; changes of one sample come one after the other.
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

}  // namespace routing_replay::server

#endif  // SERVER_STORE_MEMORY_SAMPLE_JOURNAL_H_
