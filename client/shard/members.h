// The servers (members) of an endpoint "shard:a:7400,b:7400", and the rule that says which member stores a sample.
// Independent of gRPC.
//
// The servers do not know of each other; only the clients have the list of members. Every client of a run must state
// the same list, in any order; each server checks its fingerprint.
//
// The server of a sample is a function of its id alone. The key of an id is the part before its first ':' (its place
// tag), or the whole id without a ':'. If the key is the host of exactly one member, the sample is there:
// "node-3:prompt-7/0" is on the member node-3:7400. Any other key goes to the member with the highest XXH64(key, seed),
// where `seed` is XXH64(member, 0) of the member's endpoint as written (rendezvous hashing); among equals, to the first
// by bytes. So "prompt-7", "prompt-7:0" and "prompt-7:1" are together, and if a member leaves the list, only its own
// samples move.
#ifndef CLIENT_SHARD_MEMBERS_H_
#define CLIENT_SHARD_MEMBERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay::client {

// Immutable.
class ShardMembers {
 public:
  // The highest byte of a handle (HandleOf) is the place + 1, and the sign bit stays clear, hence this limit.
  static constexpr size_t kMaxMembers = 127;

  // Returns true for "shard:…"; every other endpoint leads to a single store.
  static bool IsShardEndpoint(absl::string_view endpoint);
  // INVALID_ARGUMENT (kField) for a member that is not an endpoint ("host:port", "[v6]:port", "unix:PATH" or
  // "file:PATH") or occurs twice, and for too many members.
  static absl::StatusOr<ShardMembers> Parse(absl::string_view endpoint);

  // The members in ascending byte order; a place is an index into this list.
  const std::vector<std::string>& endpoints() const { return endpoints_; }
  size_t size() const { return endpoints_.size(); }
  // The fingerprint of the list: XXH64 with seed 0 of the members in ascending order, each followed by a line feed.
  // Never 0.
  uint64_t fingerprint() const { return fingerprint_; }

  size_t PlaceOf(absl::string_view sample) const;
  // The place tag of a member ("node-3:"): samples whose ids begin with it are stored there. Empty if it has none,
  // because another member has the same host, or because its host is an IPv6 address.
  std::string TagOf(size_t place) const;
  // The handle of a sample: SampleHandle of its id, with its place + 1 in the highest byte.
  int64_t HandleOf(absl::string_view sample) const;
  // The place in a handle from HandleOf. INVALID_ARGUMENT (kField) if it names no member of this list.
  absl::StatusOr<size_t> PlaceOfHandle(int64_t handle) const;
  // Checks that a fork is on the server of its parent, because rows can be shared only within a server.
  // INVALID_ARGUMENT (kField, "prefix") if it is not; the message names the tag with which the fork's id must begin.
  absl::Status CheckFork(absl::string_view fork, absl::string_view parent) const;

 private:
  explicit ShardMembers(std::vector<std::string> endpoints);

  std::vector<std::string> endpoints_;
  std::vector<uint64_t> seeds_;
  uint64_t fingerprint_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_MEMBERS_H_
