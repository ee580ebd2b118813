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
  std::erase_if(holders_, [&](const auto& holder) { return holder.second.expires <= now; });
  for (const auto& [secret, holder] : holders_) {
    if (holder.token == token && holder.expires - now >= kLife / 2) return {secret, holder.expires};
  }
  Ticket ticket{.secret = NewSecret(), .expires = now + kLife};
  holders_.emplace(ticket.secret, Holder{std::string(token), ticket.expires});
  return ticket;
}

std::optional<std::string> Tickets::TokenOf(absl::string_view secret) {
  MutexLock lock(mutex_);
  const auto found = holders_.find(secret);
  if (found == holders_.end() || found->second.expires <= clock_.Now()) return std::nullopt;
  return found->second.token;
}

}  // namespace routing_replay::server
