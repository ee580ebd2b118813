#include "server/security/tickets.h"

#include <sys/random.h>

#include <cstdlib>

namespace routing_replay::server {
namespace {

std::string NewSecret() {
  std::string secret(16, '\0');
  // A request for at most 256 bytes is answered in full or fails.
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) std::abort();
  return secret;
}

}  // namespace

Tickets::Ticket Tickets::Issue(absl::string_view token) {
  const Clock::Time now = clock_.Now();
  MutexLock lock(mutex_);
  const auto known = latest_.find(token);
  if (known != latest_.end() && known->second.expires - now >= kLife / 2) return known->second;
  ForgetExpired(now);
  Ticket ticket{.secret = NewSecret(), .expires = now + kLife};
  holders_.emplace(ticket.secret, Holder{std::string(token), ticket.expires});
  latest_.insert_or_assign(std::string(token), ticket);
  return ticket;
}

std::optional<std::string> Tickets::TokenOf(absl::string_view secret) {
  MutexLock lock(mutex_);
  const auto found = holders_.find(secret);
  if (found == holders_.end() || found->second.expires <= clock_.Now()) return std::nullopt;
  return found->second.token;
}

void Tickets::ForgetExpired(Clock::Time now) {
  std::erase_if(holders_, [&](const auto& holder) { return holder.second.expires <= now; });
  std::erase_if(latest_, [&](const auto& ticket) { return ticket.second.expires <= now; });
}

}  // namespace routing_replay::server
