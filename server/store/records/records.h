// Encodes runs and samples as the records of records.proto, for the stores that write them to a disk or to Redis. A
// record is a protobuf message, then the CRC32C of its bytes (4 bytes, little-endian).
//
//   SampleContent ─EncodeHead, EncodeWindow─▶ bytes ─DecodeContent─▶ an equal SampleContent
//
// Pure; thread-safe.
#ifndef SERVER_STORE_RECORDS_RECORDS_H_
#define SERVER_STORE_RECORDS_RECORDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/sample_rules.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Returns a DATA_LOSS error (kChecksum): "a stored record is damaged: WHAT".
absl::Status DamagedRecord(absl::string_view what);

// Encodes the name, geometry and options of a run.
std::string EncodeRun(const RunInfo& run);
// DATA_LOSS if the record is damaged.
absl::StatusOr<RunInfo> DecodeRun(absl::string_view record);

// A block, named by the number that its store gave it.
struct BlockRef {
  uint64_t id = 0;
  RowRange rows;
  Codec codec = Codec::kRaw;
  friend bool operator==(const BlockRef&, const BlockRef&) = default;
};

// Encodes everything of a sample's content except its pieces, which are in the windows' records.
std::string EncodeHead(const SampleContent& content);

// Encodes the record of one window, which must be in [0, WindowCount(content.rows(), block_rows)). `pieces`, ascending,
// are the content's pieces, at least from this window on; the pieces in `content` are ignored. `id_of` returns the
// number of a block that a piece refers to. Returns "" if there is nothing to write: the window has neither pieces nor
// a check.
std::string EncodeWindow(const SampleContent& content, absl::Span<const RowPiece> pieces, int32_t block_rows,
                         int64_t window, const std::function<uint64_t(const StoredBlock&)>& id_of);

// True if the record is a window record that refers to the block.
bool WindowShows(absl::string_view record, uint64_t block);

// Puts a sample's content together. `windows`: all window records, ascending. `block_at` is called once for each piece
// and returns its block, or null if the block is gone. DATA_LOSS if a record is damaged or if the records contradict
// each other: each row of [0, rows) must be either recorded, by one piece, or unrecorded.
absl::StatusOr<SampleContent> DecodeContent(
    absl::string_view head, absl::Span<const std::string> windows, int32_t block_rows,
    const std::function<std::shared_ptr<StoredBlock>(const BlockRef&)>& block_at);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_RECORDS_RECORDS_H_
