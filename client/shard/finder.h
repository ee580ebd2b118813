// Which member of a run has a sample, and which one an append goes to.
#ifndef CLIENT_SHARD_FINDER_H_
#define CLIENT_SHARD_FINDER_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/shard/member.h"
#include "client/shard/places.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Thread-safe.
class Finder {
 public:
  Finder(std::shared_ptr<const MemberSet> members, std::string run)
      : members_(std::move(members)), run_(std::move(run)), places_(members_->names()) {}

  const MemberSet& members() const { return *members_; }
  Places& places() { return places_; }

  // Asks all members: Places::Learn.
  absl::StatusOr<std::optional<size_t>> Search(Producer producer, int64_t handle);

  // Where an append of `rows` rows goes (Places::Route). Waits for answers where that is not known; errors of Search.
  absl::StatusOr<size_t> PlaceOf(const AppendOptions& append, int64_t rows);

 private:
  const std::shared_ptr<const MemberSet> members_;
  const std::string run_;
  Places places_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_FINDER_H_
