// The one way in which a sample changes: blocks first, then the manifest, if its version is still the expected one.
#ifndef SERVER_STORE_REDIS_REDIS_CHANGE_H_
#define SERVER_STORE_REDIS_REDIS_CHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_look.h"
#include "server/store/redis/redis_run.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {

struct RedisChange {
  const SampleName& name;
  const RedisFound& before;
  SampleContent next;  // Whole.
  // From here on windows and their pieces may be other ones than before.
  int64_t first_window = 0;
  // Blocks of `next` that are not in Redis yet.
  std::vector<std::shared_ptr<StoredBlock>> added;
  // It raises the revision, and made again on top of what others did meanwhile it would be another change.
  bool once = false;
  // Of the entry that a lost sample left in the index, if `before` does not exist for that reason; the new version is a
  // higher one.
  int64_t lost_version = 0;
};

// The sample as it is now; nothing if somebody else changed it meanwhile, or the guess was wrong: look again. Where a
// connection was lost, the change may have been made the first time and others may have changed the sample since:
//  - nothing is given then, too: what the change is made of must be such that it can be made again (appends, seals)
//  - a change that is to be made `once` gives the sample as it is now, or UNAVAILABLE where that cannot be told any
//  more
//    (others have raised the revision since, or the sample began anew)
// After UNAVAILABLE and DEADLINE_EXCEEDED the change may have been made. Blocks that nobody can have seen are taken
// away again; all others, and those that could not be taken away, go when their time is up. Watchers in this server are
// not told. ALREADY_EXISTS (kHandleCollision), RESOURCE_EXHAUSTED, NOT_FOUND (kNoRun).
absl::StatusOr<std::optional<RedisFound>> Commit(RedisContext& context, RedisRun& run, RedisChange change);

// The same for several samples of one run at once; one answer for each. They exist, none is guessed or goes to another
// group.
std::vector<absl::StatusOr<std::optional<RedisFound>>> CommitAll(RedisContext& context, RedisRun& run,
                                                                 absl::Span<RedisChange> changes);

// `next`, which has no pieces, differs from what was found in nothing that windows hold.
RedisChange ChangeOfHead(const RedisRun& run, const SampleName& name, const RedisFound& found, SampleContent next);

// Notes the use of a sample, if that was not done lately, and gives its keys time to live. `found` is as it is then. If
// that fails, the next use does it.
void Touch(RedisContext& context, RedisRun& run, const SampleName& name, RedisFound& found);

// What others must know of a change: message of the sample's channel.
std::string ChangeMessage(const RedisContext& context, const SampleName& name);

// Of all blocks of the pieces, each once.
std::vector<std::string> ChunkKeys(absl::Span<const RowPiece> pieces);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_CHANGE_H_
