// The end of samples, many at a time.
#ifndef SERVER_STORE_REDIS_REDIS_REMOVAL_H_
#define SERVER_STORE_REDIS_REDIS_REMOVAL_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_look.h"
#include "server/store/redis/redis_run.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Removes samples of one run. Not thread-safe.
class RedisRemoval {
 public:
  // Whether a sample that was looked at is to end. If it changes before it is removed, it is looked at again.
  using Filter = std::function<bool(const RedisFound&)>;

  // `unused`: a use counts as a change, too. `context` and `run` outlive it.
  RedisRemoval(RedisContext& context, RedisRun& run, Filter ends, bool unused)
      : context_(context), run_(run), ends_(std::move(ends)), unused_(unused) {}

  // A name finds as in LookAt, but never another sample. One of kUnreadableVersion is left to its time to live.
  // Watchers in this server are told. After an error some of them may have ended; they are in result().
  absl::Status Remove(std::vector<SampleName> names);
  const ReleaseResult& result() const { return result_; }

 private:
  absl::Status RemoveBatch(std::vector<SampleName> names);
  // One server has the samples and their places in the index, so that both end in one step.
  bool with_index() const { return !context_.cluster->clustered(); }
  absl::Status EndEntries(const std::vector<SampleName>& names, const std::vector<size_t>& asked,
                          const std::vector<RedisFound>& found);
  RedisRequest Request(const SampleName& name, const RedisFound& found) const;
  void TakeEnd(const SampleName& name, const RedisFound& found, bool by_this, std::vector<RedisRequest>& tidy);

  RedisContext& context_;
  RedisRun& run_;
  const Filter ends_;
  const bool unused_;
  ReleaseResult result_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_REMOVAL_H_
