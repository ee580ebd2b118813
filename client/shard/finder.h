// Which member of a run has a sample, and which one an append goes to.
#ifndef CLIENT_SHARD_FINDER_H_
#define CLIENT_SHARD_FINDER_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/shard/member.h"
#include "client/shard/places.h"

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

  // Where an append goes (Places::Route). Waits for answers where that is not known; an error of Search names the
  // sample.
  absl::StatusOr<size_t> PlaceOf(const AppendFacts& append);
  // The same without waiting: nothing where it is not known.
  std::optional<size_t> KnownPlaceOf(const AppendFacts& append) { return places_.Route(append, false).place; }

 private:
  const std::shared_ptr<const MemberSet> members_;
  const std::string run_;
  Places places_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_FINDER_H_
