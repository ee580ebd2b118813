#include "server/store/redis/redis_keep.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/store/redis/redis_change.h"
#include "server/store/redis/redis_sample.h"

namespace routing_replay::server {
namespace {

// Samples marked in one go.
constexpr size_t kBatch = 256;

class Keeping {
 public:
  Keeping(RedisContext& context, const std::shared_ptr<RedisRun>& run,
          const std::function<bool(const RedisFound&)>& asked)
      : context_(context), run_(run), asked_(asked) {}

  absl::StatusOr<int64_t> Keep(std::vector<SampleName> names) {
    const absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, *run_, names);
    if (!found.ok()) return found.status();
    int64_t kept = 0;
    std::vector<RedisChange> changes;
    std::vector<const SampleName*> rest;
    for (size_t i = 0; i < names.size(); ++i) {
      const RedisFound& one = (*found)[i];
      if (!one.exists()) continue;
      if (names[i].sample.empty()) names[i].sample = one.stamp.sample;
      if (!IsAsExpected(names[i], one)) {
        rest.push_back(&names[i]);
      } else if (asked_(one) && CheckRelease(**one.content, ReleaseMode::kAfterCheckpoint) == ReleaseStep::kKeep) {
        ++kept;
        if ((*one.content)->awaits_checkpoint) continue;
        changes.push_back(ChangeOfHead(*run_, names[i], one, KeptContent(**one.content)));
      }
    }
    for (const SampleName* name : MarkAll(changes)) {
      --kept;
      rest.push_back(name);
    }
    for (const SampleName* name : rest) {
      const absl::StatusOr<bool> one = RedisSample(context_, run_, *name).Keep(asked_);
      if (!one.ok()) return one.status();
      kept += *one ? 1 : 0;
    }
    return kept;
  }

 private:
  // What is damaged, less than it was, or another one, is looked at alone, where each of these is told.
  bool IsAsExpected(const SampleName& name, const RedisFound& found) {
    if (!found.content.ok() || found.stamp.sample != name.sample) return false;
    const std::string key = RedisSampleKeys(context_.keys, run_->life, name.handle).Manifest(name.producer);
    const std::optional<AcknowledgedSample> acknowledged = context_.known.Acknowledged(key);
    return !acknowledged || !acknowledged->IsMoreThan(found.stamp.birth, **found.content);
  }

  // The names of those that were not marked: others have changed them meanwhile, or it failed.
  std::vector<const SampleName*> MarkAll(std::vector<RedisChange>& changes) {
    std::vector<const SampleName*> failed;
    if (changes.empty()) return failed;
    const auto marked = CommitAll(context_, *run_, absl::MakeSpan(changes));
    for (size_t i = 0; i < changes.size(); ++i) {
      const SampleName& name = changes[i].name;
      if (!marked[i].ok() || !*marked[i]) {
        failed.push_back(&name);
      } else {
        run_->watches->Notify(name.handle, name.producer, name.sample);
      }
    }
    return failed;
  }

  RedisContext& context_;
  const std::shared_ptr<RedisRun>& run_;
  const std::function<bool(const RedisFound&)>& asked_;
};

}  // namespace

absl::StatusOr<int64_t> KeepForCheckpoint(RedisContext& context, const std::shared_ptr<RedisRun>& run,
                                          absl::Span<const SampleName> names,
                                          const std::function<bool(const RedisFound&)>& asked) {
  int64_t kept = 0;
  for (size_t i = 0; i < names.size(); i += kBatch) {
    const absl::Span<const SampleName> batch = names.subspan(i, kBatch);
    const absl::StatusOr<int64_t> some = Keeping(context, run, asked).Keep({batch.begin(), batch.end()});
    if (!some.ok()) return some.status();
    kept += *some;
  }
  return kept;
}

}  // namespace routing_replay::server
