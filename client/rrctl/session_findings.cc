// What the commands that read rows show of them.
#include <unistd.h>

#include "client/rrctl/compare/diff.h"
#include "client/rrctl/session.h"

namespace routing_replay {
namespace {

// Without what has a table of its own.
Document Without(Document object, const std::string& key) {
  object.erase(key);
  return object;
}

}  // namespace

absl::Status Session::Diff() {
  const auto client = Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<Document> found;
  {
    ProgressLine line;
    found = routing_replay::Diff(**client, settings_.diff, [&](const Progress& progress) { line.Show(progress); });
  }
  if (!found.ok()) return found.status();
  if (output_.format() == Format::kJson) {
    output_.Print(*found, Layout::kRecords);
  } else {
    output_.Print(Without(*found, "layers"), Layout::kRecords);
    if (!(*found)["layers"].empty()) output_.Write("\n");
    output_.Print((*found)["layers"], Layout::kColumns);
  }
  if (!(*found)["equal"].get<bool>()) verdict_ = kExitFailed;
  return output_.Flush();
}

}  // namespace routing_replay
