#include "server/service/recent_appends.h"

#include <tuple>

#include "absl/hash/hash.h"

namespace routing_replay::server {
namespace {

// The same for an append that is sent again, and for nothing else.
uint64_t NameOf(absl::string_view run, const AppendHeader& header) {
  const auto name = std::make_tuple(run, absl::string_view(header.sample), static_cast<int32_t>(header.producer),
                                    header.rows.begin, header.rows.end, header.revision, header.resend_key);
  return absl::Hash<decltype(name)>()(name);
}

}  // namespace

std::optional<AppendAck> RecentAppends::Find(absl::string_view run, const AppendHeader& header) const {
  if (header.resend_key == 0) return std::nullopt;
  MutexLock lock(mutex_);
  const auto at = known_.find(NameOf(run, header));
  if (at == known_.end()) return std::nullopt;
  const Known& known = at->second;
  return AppendAck{.committed_rows = known.committed_rows,
                   .revision = known.revision,
                   .content_id = known.content_id,
                   .sealed = known.sealed};
}

void RecentAppends::Add(absl::string_view run, const AppendHeader& header, const AppendAck& ack) {
  if (header.resend_key == 0) return;
  const uint64_t name = NameOf(run, header);
  MutexLock lock(mutex_);
  if (!known_.insert_or_assign(name, Known{ack.committed_rows, ack.revision, ack.content_id, ack.sealed}).second)
    return;
  order_.push_back(name);
  if (order_.size() <= kCapacity) return;
  known_.erase(order_.front());
  order_.pop_front();
}

}  // namespace routing_replay::server
