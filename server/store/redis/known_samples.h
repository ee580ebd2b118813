// What this server knows of samples that it has dealt with lately: their contents, so that it need not read them again
// as long as their version is the same, and what it has acknowledged, so that it sees when Redis comes back with less.
#ifndef SERVER_STORE_REDIS_KNOWN_SAMPLES_H_
#define SERVER_STORE_REDIS_KNOWN_SAMPLES_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "proto/wire/mutex.h"
#include "server/store/redis/redis_manifest.h"
#include "server/store/sample/sample_content.h"

namespace routing_replay::server {

// A sample as it was acknowledged. Within one birth, what comes later has a higher revision, or the same one and no
// fewer rows.
struct AcknowledgedSample {
  int64_t birth = 0;
  int64_t revision = 0;
  int64_t rows = 0;
  bool sealed = false;
  int64_t kept_revision = 0;  // Of those known to be so, the last one that no failover undoes. Nobody has to keep 0.

  // Whether `content`, which Redis has now, lacks something of it.
  bool IsMoreThan(int64_t its_birth, const SampleContent& content) const {
    if (its_birth != birth || content.revision > revision) return false;
    return content.revision < revision || content.rows() < rows || (sealed && !content.sealed());
  }
};

// By manifest key. Bounded: the samples that were not used for longest are forgotten, their contents first.
// Thread-safe.
class KnownSamples {
 public:
  KnownSamples(size_t sample_limit, int64_t byte_limit) : sample_limit_(sample_limit), byte_limit_(byte_limit) {}

  // Null unless the content of this very version and birth is known.
  std::shared_ptr<const SampleContent> Content(const std::string& key, int64_t version, int64_t birth);
  // As it was when it was last looked at or changed by this server, if that is still known. It may be another by now.
  std::optional<RedisManifest> Last(const std::string& key);
  std::optional<AcknowledgedSample> Acknowledged(const std::string& key);

  void PutContent(const std::string& key, const RedisManifest& manifest);
  // What is known to be kept of the same birth stays so.
  void Acknowledge(const std::string& key, const AcknowledgedSample& sample);
  // If this birth was the last one to be acknowledged.
  void NoteKept(const std::string& key, int64_t birth, int64_t revision);
  void Forget(const std::string& key);

 private:
  struct Entry {
    std::string key;
    RedisManifest manifest;  // Without content if that is not known.
    int64_t bytes = 0;
    std::optional<AcknowledgedSample> acknowledged;
  };
  using Entries = std::list<Entry>;  // The last used one first.

  Entry* Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry& FindOrAdd(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropContent(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t sample_limit_;
  const int64_t byte_limit_;
  Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Entries::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_KNOWN_SAMPLES_H_
