// Looking at samples: their manifests, as they are in Redis now.
#ifndef SERVER_STORE_REDIS_REDIS_LOOK_H_
#define SERVER_STORE_REDIS_REDIS_LOOK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_manifest.h"
#include "server/store/redis/redis_run.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {

struct RedisFound {
  RedisStamp stamp;  // Version 0: there is no such sample.
  // DATA_LOSS if its records are damaged.
  absl::StatusOr<std::shared_ptr<const SampleContent>> content = nullptr;
  // True: as this server knew it last, or took it to be, without a look. Only a change may be built on it, which finds
  // out whether that is so, and asks whether the run lives.
  bool guessed = false;

  bool exists() const { return stamp.version != 0; }
  RedisManifest manifest() const { return {stamp, *content}; }
};

// Of one that exists, and whose content is known.
SampleState StateOf(const RedisContext& context, const SampleName& name, const RedisFound& found);

// Where the blocks of a sample are. `name.sample` may be empty; it is for messages.
std::shared_ptr<const RedisPlace> PlaceOf(const RedisContext& context, const RedisRun& run, const SampleName& name);

// One answer per name. A name without an id finds whichever sample has the handle; one with an id may find another
// sample's, which has the same handle. NOT_FOUND (kNoRun), and run.ended set, if the run is not there any more; errors
// of RedisCluster.
absl::StatusOr<std::vector<RedisFound>> LookAt(RedisContext& context, RedisRun& run,
                                               absl::Span<const SampleName> names);

// The command that tells whether the run lives, and what its answer means: OK, or as above.
RedisRequest AskForLife(const RedisContext& context, const RedisRun& run);
absl::Status CheckLifeOf(RedisRun& run, const RedisResult& answer);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_LOOK_H_
