// Where samples of a run are that need not be at their natural owner. Knows no gRPC.
#ifndef CLIENT_SHARD_PLACES_H_
#define CLIENT_SHARD_PLACES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/shard/members.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::client {

// What an append says of where it goes.
struct AppendFacts {
  Producer producer = Producer::kRollout;
  absl::string_view sample;
  absl::string_view prefix_sample;  // Empty: it is no fork.
  bool begins = false;              // It has the first rows of a sample's first life.
};

// Where an append goes, or what must be searched for first.
struct AppendRoute {
  std::optional<size_t> place;
  int64_t search_for = 0;
};

// What a client has learned: forks live with their parent. A memory of bounded size, which forgets what was not asked
// for in a long time; a place may be out of date. Thread-safe.
class Places {
 public:
  // Samples that are remembered; some tens of bytes each.
  static constexpr size_t kDefaultSize = 1 << 18;

  explicit Places(const ShardMembers& members, size_t size = kDefaultSize) : members_(members), half_(size / 2) {}

  const ShardMembers& members() const { return members_; }
  // The member that is known to have the sample; nothing where that is not known.
  std::optional<size_t> Find(Producer producer, int64_t handle);
  // The same, and where nothing is known the natural owner.
  size_t FindOrNatural(Producer producer, int64_t handle);
  void Remember(Producer producer, int64_t handle, size_t member);
  // What a search found, by member, absent where one did not answer: remembers one that has the sample, and gives it.
  // Nothing if none but the natural owner can have it. UNAVAILABLE naming one that did not answer if that may have it,
  // and nothing is remembered.
  absl::StatusOr<std::optional<size_t>> Learn(Producer producer, int64_t handle,
                                              absl::Span<const std::optional<bool>> found);
  // A fork goes where its parent is; a sample that is begun goes to its natural owner; one that goes on goes to where
  // it is. Where a sample is begun is remembered. `searched`: Learn was OK.
  AppendRoute Route(const AppendFacts& append, bool searched);
  void Forget(Producer producer, int64_t handle);

 private:
  // The sign bit of a handle is clear.
  static uint64_t Key(Producer producer, int64_t handle) {
    return static_cast<uint64_t>(handle) << 1 | (producer == Producer::kTrainer ? 1 : 0);
  }
  void Insert(uint64_t key, uint32_t member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ShardMembers members_;
  const size_t half_;
  Mutex mutex_;
  // What was asked for of `older_` moves to `newer_`; when that is full it becomes the older one.
  std::unordered_map<uint64_t, uint32_t> newer_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, uint32_t> older_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_PLACES_H_
