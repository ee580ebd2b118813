// Keys of the Redis store. What one script must see together shares a hash tag, the part in braces: a cluster then
// keeps it on one server. Run names and prefixes have no braces; of samples only the handle is in keys.
//
//   PREFIX:layout                        string   which layout this is: redis_layout.h
//   PREFIX:runs                          set      names of runs; what is in it need not be there any more
//   PREFIX:dropped                       zset     "life run" of dropped runs, by the time when to clear them away
//   PREFIX:{run}:r                       hash     record → RunRecord, life → the run's life
//   PREFIX:{run}:c                       channel  the run was dropped
//   PREFIX:{life/handle}:m1, :m2         hash     manifest of the sample, by producer: redis_manifest.h
//   PREFIX:{life/handle}:p:block:chunk   string   at most kChunkBytes of a block: redis_block.h; p: producer
//   PREFIX:{life/handle}:c               channel  the sample changed
//   PREFIX:{life/bN}:z1, :e1, :d1, :n …  part N of the run's index: redis_index.h
//
// A life is a random number that a run gets when it is made: what a dropped run left behind cannot be seen from a run
// that has its name later. Pure; thread-safe.
#ifndef SERVER_STORE_REDIS_REDIS_KEYS_H_
#define SERVER_STORE_REDIS_REDIS_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::server {

// Of a deployment.
class RedisKeys {
 public:
  // `prefix`: CheckId.
  explicit RedisKeys(std::string prefix) : prefix_(std::move(prefix)) {}

  std::string Layout() const { return prefix_ + ":layout"; }
  std::string Runs() const { return prefix_ + ":runs"; }
  std::string Dropped() const { return prefix_ + ":dropped"; }
  std::string Run(absl::string_view run) const { return Tagged(run, "r"); }
  std::string RunChannel(absl::string_view run) const { return Tagged(run, "c"); }
  // Any string inside a tag's braces, and what follows.
  std::string Tagged(absl::string_view tag, absl::string_view rest) const;

 private:
  const std::string prefix_;
};

// Of one sample id of one life of a run, whatever the producer.
class RedisSampleKeys {
 public:
  RedisSampleKeys(const RedisKeys& keys, absl::string_view life, int64_t handle);

  std::string Manifest(Producer producer) const;
  std::string Chunk(Producer producer, uint64_t block, int64_t chunk) const;
  std::string Channel() const { return base_ + "c"; }

 private:
  std::string base_;
};

// Of one part of a run's index.
class RedisBucketKeys {
 public:
  // Spreads the index over servers, and the work on it over their threads. Part of the layout: servers of one
  // deployment must agree on it.
  static constexpr int kBuckets = 16;
  static int Of(int64_t handle) { return static_cast<int>(static_cast<uint64_t>(handle) % kBuckets); }

  RedisBucketKeys(const RedisKeys& keys, absl::string_view life, int bucket);

  std::string Names(Producer producer) const;    // zset, all of score 0: in order of id.
  std::string Entries(Producer producer) const;  // hash
  std::string Due(Producer producer) const;      // zset
  std::string Counts() const { return base_ + "n"; }

 private:
  std::string base_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_KEYS_H_
