// The names in the directory of an exported run, and the two small files that are no JSON of their own.
#ifndef PROTO_EXPORTED_LAYOUT_H_
#define PROTO_EXPORTED_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

inline constexpr char kExportMarker[] = "DONE", kExportJournal[] = "journal";
// What is to become an index, the marker or the journal; whatever has these names in such a directory is nothing else.
inline constexpr char kIndexPart[] = "index.part", kMarkerPart[] = "DONE.part", kJournalPart[] = "journal.part";

// "index.7.json", "00000007.npy", and the number in such a name: absent for any other one.
std::string IndexFileName(int64_t number);
std::optional<int64_t> IndexNumber(absl::string_view name);
std::string ExportFileName(int64_t number);
std::optional<int64_t> ExportFileNumber(absl::string_view name);

// The index that holds, and its CRC32C.
struct ExportMarker {
  int64_t index = 0;
  uint32_t crc32c = 0;

  std::string ToText() const;
  static std::optional<ExportMarker> FromText(absl::string_view text);
};
// The marker of version 1, which had one index, was its CRC32C alone.
bool IsFirstVersionsMarker(absl::string_view text);

// CRC32C of the JSON in eight hexadecimal digits, a space, the JSON, a line feed.
std::string JournalLine(absl::string_view json);
// The JSON of the lines that are as they were written. Views of `text`.
std::vector<absl::string_view> JournalLines(absl::string_view text);

absl::Span<const uint8_t> AsBytes(absl::string_view text);
absl::string_view AsText(absl::Span<const uint8_t> bytes);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_LAYOUT_H_
