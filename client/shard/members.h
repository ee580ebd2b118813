// The servers of an endpoint "shard:a:7400,b:7400", and which of them a sample belongs to. Knows no gRPC.
#ifndef CLIENT_SHARD_MEMBERS_H_
#define CLIENT_SHARD_MEMBERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

// A stated list of servers, none of which knows of the others; every client of a run states the same one. Immutable.
//
// The rule, for those who follow it elsewhere (rendezvous hashing): the natural owner of a sample is the member with
// the highest XXH64(handle, seed), where `handle` is SampleHandle of the id as 8 bytes little-endian and `seed` is
// XXH64(member, 0) of the member's endpoint as it is written; of equal ones the member that is first by its bytes. So
// the order of the list is of no account, and with a member taken out only its own samples have another owner.
class ShardMembers {
 public:
  static constexpr size_t kMaxMembers = 256;

  // "shard:…": another endpoint is of one server.
  static bool IsShardEndpoint(absl::string_view endpoint);
  // INVALID_ARGUMENT (kField) for a member that cannot be an endpoint ("host:port", "[v6]:port", "unix:PATH" or
  // "file:PATH"), that is written twice, or for too many of them.
  static absl::StatusOr<ShardMembers> Parse(absl::string_view endpoint);

  // Ascending by their bytes; positions in it are what "member" means below.
  const std::vector<std::string>& endpoints() const { return endpoints_; }
  size_t size() const { return endpoints_.size(); }
  size_t NaturalOwner(int64_t handle) const;
  // XXH64, seed 0, of the members in ascending order, each followed by a line feed. Never 0.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  explicit ShardMembers(std::vector<std::string> endpoints);

  std::vector<std::string> endpoints_;
  std::vector<uint64_t> seeds_;
  uint64_t fingerprint_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_MEMBERS_H_
