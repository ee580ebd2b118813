// The store that any number of servers share: everything is in Redis or Valkey, one server or a cluster; this process
// keeps nothing that could not be read again.
//
//   RedisStore ─▶ RedisRuns ─▶ RedisSample ─▶ look, rules of ../sample, commit by one script ─▶ RedisCluster
//                          └─▶ RedisIndex (lists, sums, expiry)         RedisWatches ◀─ channels
//
// A sample is a manifest and chunks of blocks (redis_keys.h). Servers that change a sample at the same time never
// interleave: a change is made by one script, only if the manifest's version is still the one that it was made from.
// An append to a sample that this server changed or saw last is built on what it knew then: its chunks and the script
// are one pipeline and one round trip. If others have changed the sample, the script refuses, the chunks are taken
// away, and the append is made again after a look. With a cluster the run's index, which lies elsewhere, takes another
// one. A prefix is copied when a sample opens with it, which costs reading and writing its rows once: parent and child
// may lie on different servers. The byte budget is not charged for rows in Redis: maxmemory bounds them there.
//
// Redis replicates behind its answers: a master that fails may take what it acknowledged last. All keys of a sample are
// on one master and are replicated in their order, so what is left is the sample as it was after some earlier change,
// never a part of one. What a server acknowledged it remembers (known_samples), and so it notices:
//   rows are gone         DATA_LOSS (kNotCommitted) once, a new revision, then LOST for reads of what is gone
//   only the seal is gone the same, but then reads say NOT_READY: all rows are there. Who seals again, under the new
//                         revision, loses nothing
// A truncation or restart that is undone would show old rows again: they are acknowledged only when a replica has them
// (redis_replica.h).
//
// Nobody remembers where that server died as well, where it has forgotten the sample (known_samples is bounded), or for
// servers that did not acknowledge it. Then the sample is shorter or unsealed at its revision: reads of the rest say
// NOT_READY, an append behind the gap is refused (kGap) with the committed count, and one that repeats what is gone
// brings it back. One that brings other rows is taken, at the same revision; then the server that had acknowledged more
// sees nothing any more, either.
//
// A sample of which nothing is left but its entry in the run's index (redis_index.h) is lost for every server: whoever
// asks for it by id, or lists the run, makes it again without rows, under a higher revision, of which DATA_LOSS tells
// once and LOST from then on. Where the entry is gone, too, it is NOT_FOUND, for a server that remembers the sample,
// too, which cannot tell that from a release through another server; and so it is for calls by handle alone. Entry and
// sample are lost together where one server has both and fails over. Of a run whose record is lost nothing is found.
#ifndef SERVER_STORE_REDIS_REDIS_STORE_H_
#define SERVER_STORE_REDIS_REDIS_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "routing_replay/wire/sample_id.h"
#include "server/store/redis/client/redis_cluster.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct RedisStoreOptions {
  const Clock* clock = &Clock::Real();                                 // Of use and expiry. Outlives the store.
  Clock::Duration default_ttl = RunOptions{}.ttl;                      // Of runs that are made without options.
  std::function<int64_t(absl::string_view)> handle_of = SampleHandle;  // The same in all servers.
  std::string prefix = "rr";                                           // Of all keys. CheckId.
  // True: the time that uses and expiry are noted by is that of Redis, so that it is the same for all servers, and
  // nothing is swept while the clocks of Redis and of this machine differ by more than a minute (redis_time.h). False:
  // it is `clock` alone.
  bool follow_time = false;
  // Of one step of a call, where its CallDeadline is not earlier. A cluster that elects a new master needs some
  // seconds.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // So long the rows that a change or a release took away can still be read by who had looked before.
  std::chrono::milliseconds reader_grace = std::chrono::seconds(60);
  // Samples whose acknowledged rows are remembered, and bytes of manifests that need not be read again.
  size_t known_samples = size_t{1} << 17;
  int64_t known_bytes = int64_t{64} << 20;
  // If not null: one more for each sample whose revision this store raised because Redis came back with less of it than
  // was acknowledged.
  std::shared_ptr<std::atomic<int64_t>> lost_samples;
};

// `name`: of the store. Errors towards callers as those of HideRedisErrors (redis_trouble.h). Starts a thread that
// hears of changes by other servers.
std::unique_ptr<Store> NewRedisStore(std::string name, std::shared_ptr<RedisCluster> cluster,
                                     const RedisStoreOptions& options);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_STORE_H_
