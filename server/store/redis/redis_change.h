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

namespace routing_replay {

struct RedisChange {
  const SampleName& name;
  const RedisFound& before;
  SampleContent next;  // Whole.
  // From here on windows and their pieces may be other ones than before.
  int64_t first_window = 0;
  // Blocks of `next` that are not in Redis yet.
  std::vector<std::shared_ptr<StoredBlock>> added;
};

// The sample as it is now; nothing if somebody else changed it meanwhile, or the guess was wrong: look again. Nothing
// is left behind then, nor after an error, but that after UNAVAILABLE and DEADLINE_EXCEEDED the change may have been
// made all the same, and that what a lost connection left in doubt goes when its time is up. Watchers in this server
// are not told. ALREADY_EXISTS (kHandleCollision), RESOURCE_EXHAUSTED, NOT_FOUND (kNoRun).
absl::StatusOr<std::optional<RedisFound>> Commit(RedisContext& context, RedisRun& run, RedisChange change);

// Notes the use of a sample, if that was not done lately, and gives its keys time to live. `found` is as it is then. If
// that fails, the next use does it.
void Touch(RedisContext& context, RedisRun& run, const SampleName& name, RedisFound& found);

// What others must know of a change: message of the sample's channel.
std::string ChangeMessage(const RedisContext& context, const SampleName& name);

// Commands that end the pieces' chunks in `life` from now.
void AddExpiries(absl::Span<const RowPiece> pieces, std::chrono::milliseconds life,
                 std::vector<RedisRequest>& requests);

}  // namespace routing_replay

#endif  // SERVER_STORE_REDIS_REDIS_CHANGE_H_
