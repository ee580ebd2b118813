// The servers of an endpoint "shard:a:7400,b:7400", and which of them a sample is with. Knows no gRPC.
//
// None of them knows of the others: the list that a client states is the list of members. Every client of a run states
// the same one, in any order; each server checks that by the list's fingerprint.
//
// The place of a sample is a function of its id alone. The key of an id is what stands before its first ':', its place
// tag, or all of it where there is no ':'. A key that is the host of exactly one member is with that one: the sample
// "node-3:prompt-7/0" with the member node-3:7400. Any other key is with the member that has the highest
// XXH64(key, seed), where `seed` is XXH64(member, 0) of the member's endpoint as it is written (rendezvous hashing); of
// equal ones the first by its bytes. So "prompt-7", "prompt-7:0" and "prompt-7:1" are together, and with a member taken
// out of the list only its own samples have another place.
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
  // A place, counted from 1, is the highest byte of a handle (HandleOf), whose sign bit stays clear.
  static constexpr size_t kMaxMembers = 127;

  // "shard:…": another endpoint is of one server.
  static bool IsShardEndpoint(absl::string_view endpoint);
  // INVALID_ARGUMENT (kField) for a member that cannot be an endpoint ("host:port", "[v6]:port", "unix:PATH" or
  // "file:PATH"), that is written twice, or for too many of them.
  static absl::StatusOr<ShardMembers> Parse(absl::string_view endpoint);

  // Ascending by their bytes; a place is a position in it.
  const std::vector<std::string>& endpoints() const { return endpoints_; }
  size_t size() const { return endpoints_.size(); }
  // XXH64, seed 0, of the members in ascending order, each followed by a line feed. Never 0.
  uint64_t fingerprint() const { return fingerprint_; }

  size_t PlaceOf(absl::string_view sample) const;
  // What a batch's column of handles carries of a sample: SampleHandle of its id, and its place + 1 in the highest
  // byte.
  int64_t HandleOf(absl::string_view sample) const;
  // Of a handle from HandleOf. INVALID_ARGUMENT (kField) for one that tells no member of this list.
  absl::StatusOr<size_t> PlaceOfHandle(int64_t handle) const;
  // Rows are shared within one server: INVALID_ARGUMENT (kField, "prefix") naming the tag that the fork's id must begin
  // with, if it would be with another one than its parent.
  absl::Status CheckFork(absl::string_view fork, absl::string_view parent) const;

 private:
  explicit ShardMembers(std::vector<std::string> endpoints);

  std::vector<std::string> endpoints_;
  std::vector<uint64_t> seeds_;
  uint64_t fingerprint_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_MEMBERS_H_
