#include "client/shard/members.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/channel/endpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr char kScheme[] = "shard:";

absl::Status Refuse(absl::string_view endpoint, absl::string_view why) {
  return MakeError(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("endpoint: \"", endpoint, "\" ", why, "; write shard: and the servers with commas between them"),
      {.reason = Reason::kField, .field = "endpoint"});
}

absl::Status CheckMember(absl::string_view endpoint, absl::string_view member) {
  if (member.empty()) return Refuse(endpoint, "has a member without a name");
  if (absl::StartsWith(member, "file:") && member.size() > 5) return absl::OkStatus();
  return GrpcTarget(member).status();
}

}  // namespace

bool ShardMembers::IsShardEndpoint(absl::string_view endpoint) { return absl::StartsWith(endpoint, kScheme); }

absl::StatusOr<ShardMembers> ShardMembers::Parse(absl::string_view endpoint) {
  absl::string_view list = endpoint;
  if (!absl::ConsumePrefix(&list, kScheme)) return Refuse(endpoint, "is of one server");
  std::vector<std::string> members = absl::StrSplit(list, ',');
  if (members.size() > kMaxMembers) return Refuse(endpoint, absl::StrCat("has more than ", kMaxMembers, " members"));
  for (const std::string& member : members) {
    if (absl::Status status = CheckMember(endpoint, member); !status.ok()) return status;
  }
  std::sort(members.begin(), members.end());
  const auto twice = std::adjacent_find(members.begin(), members.end());
  if (twice != members.end()) return Refuse(endpoint, absl::StrCat("has the member ", *twice, " twice"));
  return ShardMembers(std::move(members));
}

ShardMembers::ShardMembers(std::vector<std::string> endpoints) : endpoints_(std::move(endpoints)) {
  std::string lines;
  for (const std::string& member : endpoints_) {
    seeds_.push_back(XXH64(member.data(), member.size(), 0));
    absl::StrAppend(&lines, member, "\n");
  }
  fingerprint_ = std::max<uint64_t>(XXH64(lines.data(), lines.size(), 0), 1);
}

size_t ShardMembers::NaturalOwner(int64_t handle) const {
  uint8_t bytes[sizeof(handle)];
  for (size_t i = 0; i < sizeof(handle); ++i) bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(handle) >> (8 * i));
  size_t owner = 0;
  uint64_t highest = 0;
  for (size_t member = 0; member < seeds_.size(); ++member) {
    const uint64_t score = XXH64(bytes, sizeof(bytes), seeds_[member]);
    if (member != 0 && score <= highest) continue;
    owner = member;
    highest = score;
  }
  return owner;
}

}  // namespace routing_replay::client
