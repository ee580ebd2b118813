// The servers of a client, and calls to all of them at once.
#ifndef CLIENT_SHARD_SERVERS_H_
#define CLIENT_SHARD_SERVERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/call/cancellation.h"
#include "client/caller.h"
#include "client/shard/members.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// An environment variable with the host of the member that runs on this machine. It is needed if neither the addresses
// nor the name of this machine show which member that is.
inline constexpr char kPlaceVariable[] = "ROUTING_REPLAY_PLACE";

// Returns true for NOT_FOUND (kNoRun).
bool IsNoRun(const absl::Status& status);

absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller);

// Runs call(0), … call(count - 1) in parallel, each on its own thread, and returns their results in this order. They
// are parts of the call of this thread: if it is cancelled, they are cancelled, too.
template <typename Call>
auto FanOut(size_t count, const Call& call) {
  using Result = decltype(call(size_t{}));
  std::vector<std::optional<Result>> slots(count);
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) {
    threads.emplace_back([&, i, scope = CallOfThread()] {
      const CallScope of_call(scope);
      slots[i] = call(i);
    });
  }
  if (count > 0) slots[0] = call(0);
  for (std::thread& thread : threads) thread.join();
  std::vector<Result> results;
  for (std::optional<Result>& slot : slots) results.push_back(*std::move(slot));
  return results;
}

// Which servers must answer a call to all servers.
enum class Needed {
  kThoseThatAnswer,  // At least one. Samples on an unreachable server cannot be read now anyway.
  kThoseWithTheRun,  // All, but it is fine if a server does not have the run.
  kAll,              // All, and each must have the run: one that lost the run has lost a part of the answer.
};

// The servers by place: the members of a "shard:…" list, over which samples are spread, or for any other endpoint a
// single one at place 0. Each Caller remembers whether its server could be reached. Thread-safe.
class Servers {
 public:
  // Makes the servers of options.endpoint, which must not be empty. Fails with the errors of Client::Connect.
  static absl::StatusOr<std::shared_ptr<const Servers>> Connect(const ClientOptions& options);
  // If `given` is a single server, asks it whether it advertises a list, and if so, returns all members of this list.
  // Otherwise returns `given`. `options` are the options that `given` was made from.
  static absl::StatusOr<std::shared_ptr<const Servers>> All(std::shared_ptr<const Servers> given,
                                                            ClientOptions options);

  size_t size() const { return callers_.size(); }
  const Caller& at(size_t place) const { return *callers_[place]; }
  // The members of a "shard:" list; null for other endpoints.
  const ShardMembers* members() const { return members_ ? &*members_ : nullptr; }

  size_t PlaceOf(absl::string_view sample) const { return members_ ? members_->PlaceOf(sample) : 0; }
  // The results of Run::place (the place tag of the member on this machine) and of Run::places (all place tags).
  const std::string& tag_here() const { return tag_here_; }
  const std::vector<std::string>& tags() const { return tags_; }
  // HandleOf is Run::Handle. FindHandle is its inverse: it returns the place of the sample's server, and the handle by
  // which that server knows the sample.
  int64_t HandleOf(absl::string_view sample) const;
  absl::StatusOr<std::pair<size_t, int64_t>> FindHandle(int64_t handle) const;
  // As ShardMembers::CheckFork, with the fork as the error's sample. OK if `parent` is empty or there is one server.
  absl::Status CheckFork(absl::string_view fork, absl::string_view parent) const;
  // Returns `status` with the server's name in front of its message if there are several servers. OK stays OK.
  absl::Status Named(size_t place, const absl::Status& status) const;

  // Runs call(place), which returns an absl::StatusOr<T>, for all servers at once. If all servers that `needed`
  // requires have answered, returns the answers of the servers that have the run. Otherwise returns an error: NOT_FOUND
  // (kNoRun) if no server has the run, DATA_LOSS (kNoRun) if a required server lost the run, else the error of a
  // required server, with the server's name.
  template <typename Call>
  auto OfAll(Needed needed, const Call& call) const {
    using Answer = decltype(call(size_t{}));
    std::vector<typename Answer::value_type> good;
    std::vector<absl::Status> ends;
    for (Answer& answer : FanOut(size(), call)) {
      ends.push_back(answer.status());
      if (answer.ok()) good.push_back(*std::move(answer));
    }
    const absl::Status status = Judge(ends, needed);
    return status.ok() ? absl::StatusOr<decltype(good)>(std::move(good)) : status;
  }

 private:
  Servers() = default;
  absl::Status Judge(const std::vector<absl::Status>& ends, Needed needed) const;

  std::optional<ShardMembers> members_;
  std::string tag_here_;
  std::vector<std::string> tags_;
  std::vector<std::unique_ptr<const Caller>> callers_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SERVERS_H_
