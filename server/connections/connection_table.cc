#include "server/connections/connection_table.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace routing_replay::server {
namespace {

constexpr size_t kNetworkBytes = 8;

Peer PeerOfV4(const void* bytes, in_port_t port) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, bytes, text, sizeof(text));
  return {.name = absl::StrCat("ipv4:", text, ":", ntohs(port)), .address = text};
}

}  // namespace

Peer PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return PeerOfV4(&v4.sin_addr, v4.sin_port);
  }
  if (address.ss_family != AF_INET6) return {.name = "unix:", .address = ""};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return PeerOfV4(v6.sin6_addr.s6_addr + 12, v6.sin6_port);
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  const std::string scope = v6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", v6.sin6_scope_id);
  return {.name = absl::StrCat("ipv6:%5B", text, scope, "%5D:", ntohs(v6.sin6_port)),
          .address = std::string(reinterpret_cast<const char*>(&v6.sin6_addr), kNetworkBytes)};
}

int64_t ConnectionTable::Window::Unanswered(const CallCounts& counts, Time now, bool fresh) {
  // Nobody looked for longer than a window, so that little came.
  const bool lost = !begin_ ? !fresh : now - *begin_ >= 2 * kCallWindow;
  if (lost) before_ = counts;
  const int64_t unanswered = (counts.begun - before_.begun) - (counts.done - before_.done);
  if (lost || !begin_) begin_ = now;
  if (now - *begin_ < kCallWindow) return unanswered;
  begin_ = now;
  before_ = counts;
  return unanswered;
}

bool ConnectionTable::IsOver(const Penalty& penalty, Time now) {
  constexpr int kTimes = 10;
  return now >= penalty.since + kTimes * penalty.pace;
}

std::optional<ConnectionTable::Id> ConnectionTable::Enter(const Peer& peer, Time now) {
  if (size() >= limits_.connections) return std::nullopt;
  if (!peer.address.empty()) {
    const auto found = addresses_.find(peer.address);
    if (found != addresses_.end() && found->second >= limits_.per_address) return std::nullopt;
    if (const auto penalty = penalties_.find(peer.address); penalty != penalties_.end()) {
      if (IsOver(penalty->second, now)) {
        penalties_.erase(penalty);
      } else if (now < penalty->second.next) {
        return std::nullopt;
      } else {
        penalty->second.next = now + penalty->second.pace;
      }
    }
  }
  ++addresses_[peer.address];
  connections_.emplace(next_, Connection{.address = peer.address, .since = now});
  return next_++;
}

void ConnectionTable::Leave(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (const auto address = addresses_.find(found->second.address); --address->second == 0) addresses_.erase(address);
  connections_.erase(found);
}

void ConnectionTable::SawCalls(Id id, const CallCounts& counts, Time now) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  const bool fresh = now - connection.since < kCallWindow;
  connection.seen = now;
  connection.unanswered = connection.window.Unanswered(counts, now, fresh) - 2 * limits_.calls_at_a_time;
}

std::vector<ConnectionTable::Id> ConnectionTable::TakeSuspects(Time now) {
  for (auto it = penalties_.begin(); it != penalties_.end();) {
    it = IsOver(it->second, now) ? penalties_.erase(it) : std::next(it);
  }
  std::vector<Id> suspects;
  int64_t sum = 0;
  for (const auto& [id, connection] : connections_) {
    if (connection.cut || connection.unanswered < kFewCalls || now - connection.seen >= kCallWindow) continue;
    suspects.push_back(id);
    sum += connection.unanswered;
  }
  if (sum <= kUnansweredCalls) return {};
  for (const Id id : suspects) {
    Connection& connection = connections_.at(id);
    connection.cut = true;
    const auto [penalty, is_new] = penalties_.try_emplace(connection.address, Penalty{.since = now, .pace = kPace});
    if (!is_new && connection.since > penalty->second.since) {
      penalty->second = {.since = now, .pace = std::min(2 * penalty->second.pace, kLongestPace)};
    }
    penalty->second.next = now + penalty->second.pace;
  }
  return suspects;
}

}  // namespace routing_replay::server
