// Which appends have no outcome yet, and what went wrong with which sample.
#ifndef CLIENT_APPENDER_OPEN_APPENDS_H_
#define CLIENT_APPENDER_OPEN_APPENDS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "client/appender/append_plan.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// What Appender::Settle is asked for.
struct SampleAttempt {
  std::string sample;
  std::optional<int64_t> attempt;
  friend auto operator<=>(const SampleAttempt&, const SampleAttempt&) = default;
};

// Of a plan, which has at least one piece.
SampleAttempt KeyOf(const AppendPlan& plan);

// The first one; but what was not marked goes before what was.
std::optional<AppendTrouble> Worse(std::optional<AppendTrouble> one, std::optional<AppendTrouble> other);

// Not thread-safe.
class OpenAppends {
 public:
  // Samples whose trouble is remembered; the oldest are forgotten first.
  static constexpr size_t kDefaultRemembered = 100'000;

  explicit OpenAppends(size_t remembered = kDefaultRemembered) : remembered_(remembered) {}

  // `dropped`: only a mark of its rows was taken.
  void Add(uint64_t sequence, SampleAttempt key, bool dropped);
  // Whether it came too late: a later attempt has replaced its own, which is no failure.
  bool Finish(uint64_t sequence, const AppendOutcome& outcome);

  bool Has(const SampleAttempt& key) const { return counts_.count(key) > 0; }
  // What went wrong with a sample: the same until more of it is appended.
  std::optional<AppendTrouble> TellTrouble(const SampleAttempt& key);

  size_t size() const { return keys_.size(); }
  // 0 if none is open.
  uint64_t newest() const { return keys_.empty() ? 0 : keys_.rbegin()->first; }
  bool HasUpTo(uint64_t sequence) const { return !keys_.empty() && keys_.begin()->first <= sequence; }

 private:
  struct Remembered {
    SampleAttempt key;
    AppendTrouble trouble;
    bool told = false;
  };
  using Troubles = std::list<Remembered>;  // Oldest first.

  void Forget(Troubles::iterator trouble);
  void Note(const SampleAttempt& key, AppendTrouble trouble);

  const size_t remembered_;
  std::map<uint64_t, SampleAttempt> keys_;  // By sequence number.
  std::map<SampleAttempt, size_t> counts_;  // Open ones.
  Troubles troubles_;
  std::map<SampleAttempt, Troubles::iterator> trouble_of_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_OPEN_APPENDS_H_
