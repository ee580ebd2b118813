// The index of a run: which samples it has, in order of id, and their sums. Spread over RedisBucketKeys::kBuckets
// parts.
//
// The samples' manifests are the truth. On one server a change and its entry are one step. In a cluster they lie apart:
// an entry is noted before its sample is made and before it ends, and put after each change, so that after a server's
// sudden end there may be entries without a sample, which lists take out, and entries that are behind, whose group is
// then marked as unknown. An entry that is neither due nor noted so belongs to a sample: where that is gone all the
// same, Redis has lost it (LeftOf). A sample without an entry is left only by the end of a server between its making
// and its note while another one took the note away; its next append puts it in again.
#ifndef SERVER_STORE_REDIS_REDIS_INDEX_H_
#define SERVER_STORE_REDIS_REDIS_INDEX_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_manifest.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {

struct RedisEntry {
  std::string sample;
  int64_t version = 0;           // 0: it may be about to be made.
  std::optional<int64_t> group;  // Nothing: the sample itself knows, if it is there.
  int64_t rows = 0;
  int64_t revision = 0;
  bool sealed = false;
};

// Thread-safe.
class RedisIndex {
 public:
  // `context` outlives it.
  RedisIndex(RedisContext& context, const std::string& life, Clock::Duration ttl);

  // Commands to be carried out, one each: before a sample is made or changes its group; after it changed; after it
  // ended at `version`.
  // `made`: there is no sample yet. 0 is then the answer where LeftOf has something to say.
  RedisRequest Mark(const SampleName& name, bool made) const;
  // A sample that ends at `version` is noted before it does, where the two are not one step.
  RedisRequest End(const SampleName& name, int64_t version) const;
  RedisRequest Put(const SampleName& name, const RedisManifest& manifest) const;
  // The same as a part of the commit script, where one server has all keys: these, and the words behind the version.
  // `before`: null for a new sample; `next`, last used now. What follows a use closely leaves the entry's times as they
  // are: a sample that is looked after too early is looked after again.
  std::vector<std::string> KeysOf(const SampleName& name) const;
  std::vector<std::string> ChangeWords(const SampleName& name, const RedisManifest* before,
                                       const RedisManifest& next) const;
  RedisRequest Drop(const SampleName& name, int64_t version) const;
  // What tells a sample that was lost from one that never was, was released or has expired: the entry of a sample that
  // had not ended and is not due yet. It means that only where no manifest was found before it was asked for. One
  // answer per name.
  absl::StatusOr<std::vector<std::optional<RedisEntry>>> LeftOf(absl::Span<const SampleName> names) const;

  struct Page {
    std::vector<RedisEntry> entries;  // By id, ascending.
    bool more = false;                // Behind the last one, of which there then is one.
  };
  // Some of a producer's entries with ids after `id`, about `limit`.
  absl::StatusOr<Page> After(Producer producer, absl::string_view id, size_t limit) const;
  // At most `limit` samples, of each part, that are due to be looked at. Where one is looked for afterwards and not
  // found, its entry may be taken out at this version.
  struct DueEntry {
    SampleName name;
    int64_t version = 0;
  };
  absl::StatusOr<std::vector<DueEntry>> Due(int64_t limit) const;

  struct Sums {
    int64_t samples = 0, sealed_samples = 0, committed_rows = 0, stored_bytes = 0;
  };
  // Commands whose answers AddSums takes one by one.
  std::vector<RedisRequest> GetSums() const;
  static void AddSums(const RedisReply& reply, Sums& sums);

  // All keys.
  std::vector<std::string> keys() const;

 private:
  std::string DueMs(int64_t last_used_ms) const;
  // Of PutEntry, from `due` on. `note`: whether due and time to live are to be written down in any case.
  std::vector<std::string> PutWords(const SampleName& name, const RedisManifest& manifest, bool note) const;
  absl::Status AddEntries(Producer producer, std::vector<std::vector<std::string>>& names,
                          std::vector<RedisEntry>& entries) const;

  RedisContext& context_;
  const RedisLives lives_;
  std::vector<RedisBucketKeys> buckets_;
  // When an entry of the sample's producer last gave the keys of its part more time.
  mutable std::array<std::array<std::atomic<int64_t>, RedisBucketKeys::kBuckets>, 2> kept_ms_{};
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_INDEX_H_
