// The servers of a client, and calls to all of them at a time.
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

// NOT_FOUND (kNoRun).
bool IsNoRun(const absl::Status& status);

// call(0), … call(count - 1), each on a thread of its own, for the call of this one. What they return, in this order.
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

// Whose answers are needed.
enum class Needed {
  kThoseThatAnswer,  // At least one's. What a server that is away has cannot be read now anyway.
  kThoseWithTheRun,  // One without the run has nothing to do.
  kAll,              // The whole is asked for: one that lost the run has lost a part of it.
};

// By place: the members of a list "shard:…", over which samples are spread, or at place 0 the one of any other
// endpoint. Their callers remember which of them are gone (Caller). Thread-safe.
class Servers {
 public:
  // Of options.endpoint, which is not empty. Errors of Client::Connect.
  static absl::StatusOr<std::shared_ptr<const Servers>> Connect(const ClientOptions& options);

  size_t size() const { return callers_.size(); }
  const Caller& at(size_t place) const { return *callers_[place]; }
  // Of the list; null where there is none.
  const ShardMembers* members() const { return members_ ? &*members_ : nullptr; }

  size_t PlaceOf(absl::string_view sample) const { return members_ ? members_->PlaceOf(sample) : 0; }
  // As Run::Handle, and back: the place, and the handle that the server there knows.
  int64_t HandleOf(absl::string_view sample) const;
  absl::StatusOr<std::pair<size_t, int64_t>> FindHandle(int64_t handle) const;
  // That the fork, if `parent` is not empty, has the same place; the error names its sample, too.
  absl::Status CheckFork(absl::string_view fork, absl::string_view parent) const;
  // `status` with the server named before its message, where there is a list. OK stays OK.
  absl::Status Named(size_t place, const absl::Status& status) const;

  // call(place) of all, each an absl::StatusOr<T>: the answers of those that have the run, where they are what is
  // needed. NOT_FOUND (kNoRun) if none has the run; DATA_LOSS (kNoRun) if one that is needed lost it; else the error of
  // one that is needed, with the server named.
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
  std::vector<std::unique_ptr<const Caller>> callers_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_SERVERS_H_
