// The servers of a sharded client.
#ifndef CLIENT_SHARD_MEMBER_H_
#define CLIENT_SHARD_MEMBER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/caller.h"
#include "client/shard/answers.h"
#include "client/shard/errors.h"
#include "client/shard/fan_out.h"
#include "client/shard/members.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay::client {

// One server. Thread-safe.
class Member {
 public:
  // As Link::Open.
  static absl::StatusOr<std::unique_ptr<Member>> Open(const std::string& endpoint, const ClientOptions& options);

  const std::string& endpoint() const { return endpoint_; }
  const std::shared_ptr<Link>& link() const { return patient_->link(); }
  // Tries for the client's call_timeout, and …
  const std::shared_ptr<const Caller>& patient() const { return patient_; }
  // … for a moment: for a server that is not known to be there.
  const std::shared_ptr<const Caller>& brief() const { return brief_; }
  // Whether the last call found no server, tried again and again.
  bool is_gone() const { return is_gone_; }
  // What such a call ended with.
  void OnEnd(const absl::Status& status) { is_gone_ = IsUnreachable(status); }

 private:
  Member(std::string endpoint, std::shared_ptr<Link> link, std::chrono::milliseconds timeout);

  const std::string endpoint_;
  const std::shared_ptr<const Caller> patient_;
  const std::shared_ptr<const Caller> brief_;
  std::atomic<bool> is_gone_ = false;
};

// All servers of a client. Thread-safe.
class MemberSet {
 public:
  static absl::StatusOr<std::shared_ptr<MemberSet>> Open(const ClientOptions& options);

  const ShardMembers& names() const { return names_; }
  size_t size() const { return members_.size(); }
  Member& operator[](size_t member) const { return *members_[member]; }
  // The first one that was gone at its last call; 0 if none was.
  size_t FirstGone() const;

  // Of each member which of the handles it has, asked of all at the same time; nothing where it did not answer by
  // `deadline` and within kAskTimeout. One that cannot be reached is tried for a moment, unless it is gone already.
  std::vector<std::optional<std::vector<int64_t>>> Locate(const std::string& run, Producer producer,
                                                          const std::vector<int64_t>& handles,
                                                          Clock::Time deadline) const;

 private:
  explicit MemberSet(ShardMembers names) : names_(std::move(names)) {}

  const ShardMembers names_;
  std::vector<std::unique_ptr<Member>> members_;
};

// The answers of the members that have the run, where they are what is needed (JudgeAnswers). An error names its
// server: NOT_FOUND (kNoRun) if none has the run; UNAVAILABLE or DEADLINE_EXCEEDED if one that is needed cannot be
// reached; DATA_LOSS (kNoRun) if one that is needed lost the run.
template <typename T>
absl::StatusOr<std::vector<T>> AnswersOf(const MemberSet& members, std::vector<absl::StatusOr<T>> answers,
                                         Needed needed) {
  std::vector<AnswerKind> kinds;
  for (const absl::StatusOr<T>& answer : answers) kinds.push_back(KindOf(answer.status()));
  const JointAnswer verdict = JudgeAnswers(kinds, needed);
  if (verdict.failed) {
    const std::string& endpoint = members[*verdict.failed].endpoint();
    return verdict.lost ? LostRunError(endpoint) : WithServer(answers[*verdict.failed].status(), endpoint);
  }
  std::vector<T> good;
  for (absl::StatusOr<T>& answer : answers) {
    if (answer.ok()) good.push_back(*std::move(answer));
  }
  return good;
}

}  // namespace routing_replay::client

#endif  // CLIENT_SHARD_MEMBER_H_
