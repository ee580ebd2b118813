#include "client/shard/members.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/channel/endpoint.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {
namespace {

constexpr char kScheme[] = "shard:";

absl::Status Reject(absl::string_view endpoint, absl::string_view why) {
  return Invalid("endpoint", absl::StrCat("\"", endpoint, "\" ", why, "; the form is \"shard:a:7400,b:7400\""));
}

absl::Status CheckMember(absl::string_view endpoint, absl::string_view member) {
  if (member.empty()) return Reject(endpoint, "has a member without a name");
  if (absl::StartsWith(member, "file:") && member.size() > 5) return absl::OkStatus();
  return GrpcTarget(member).status();
}

absl::string_view KeyOf(absl::string_view sample) { return sample.substr(0, sample.find(':')); }

}  // namespace

bool ShardMembers::IsShardEndpoint(absl::string_view endpoint) { return absl::StartsWith(endpoint, kScheme); }

absl::StatusOr<ShardMembers> ShardMembers::Parse(absl::string_view endpoint) {
  absl::string_view list = endpoint;
  if (!absl::ConsumePrefix(&list, kScheme)) return Reject(endpoint, "is a single server");
  std::vector<std::string> members = absl::StrSplit(list, ',');
  if (members.size() > kMaxMembers) return Reject(endpoint, absl::StrCat("has more than ", kMaxMembers, " members"));
  for (const std::string& member : members) {
    RR_RETURN_IF_ERROR(CheckMember(endpoint, member));
  }
  std::sort(members.begin(), members.end());
  const auto twice = std::adjacent_find(members.begin(), members.end());
  if (twice != members.end()) return Reject(endpoint, absl::StrCat("has the member ", *twice, " twice"));
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

size_t ShardMembers::PlaceOf(absl::string_view sample) const {
  const absl::string_view key = KeyOf(sample);
  const std::string host = absl::StrCat(key, ":");
  const auto is_named = [&host](const std::string& member) { return absl::StartsWith(member, host); };
  const auto named = std::find_if(endpoints_.begin(), endpoints_.end(), is_named);
  const bool is_one = named != endpoints_.end() && std::none_of(named + 1, endpoints_.end(), is_named);
  if (is_one) return static_cast<size_t>(named - endpoints_.begin());
  size_t place = 0;
  uint64_t highest = 0;
  for (size_t member = 0; member < seeds_.size(); ++member) {
    const uint64_t score = XXH64(key.data(), key.size(), seeds_[member]);
    if (member != 0 && score <= highest) continue;
    place = member;
    highest = score;
  }
  return place;
}

std::string ShardMembers::TagOf(size_t place) const {
  const std::string& member = endpoints_[place];
  std::string tag = member.substr(0, member.find(':') + 1);
  const auto has_tag = [&tag](const std::string& other) { return absl::StartsWith(other, tag); };
  return CheckId(tag, "tag").ok() && std::count_if(endpoints_.begin(), endpoints_.end(), has_tag) == 1 ? tag : "";
}

int64_t ShardMembers::HandleOf(absl::string_view sample) const {
  return static_cast<int64_t>(PlaceOf(sample) + 1) << kHandleBits | SampleHandle(sample);
}

absl::StatusOr<size_t> ShardMembers::PlaceOfHandle(int64_t handle) const {
  const int64_t member = handle >> kHandleBits;
  if (member >= 1 && member <= static_cast<int64_t>(size())) return static_cast<size_t>(member - 1);
  const std::string why = member == 0 ? "does not say which server has the sample"
                                      : absl::StrCat("names server ", member, " of a list of ", size());
  return Invalid("handle", absl::StrCat(handle, " ", why, "; pass the id, or the handle from the run (",
                                        "run.handle(id)) over the same list of servers"));
}

absl::Status ShardMembers::CheckFork(absl::string_view fork, absl::string_view parent) const {
  const size_t own = PlaceOf(fork), there = PlaceOf(parent);
  if (own == there) return absl::OkStatus();
  return Invalid("prefix",
                 absl::StrCat("the fork \"", fork, "\" would be on server ", endpoints_[own], ", its parent \"", parent,
                              "\" is on ", endpoints_[there], ": begin the fork's id with \"", KeyOf(parent), ":\""));
}

}  // namespace routing_replay::client
