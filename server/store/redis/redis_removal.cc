#include "server/store/redis/redis_removal.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "server/store/redis/redis_change.h"
#include "server/store/redis/redis_scripts.h"

namespace routing_replay {
namespace {

// Samples removed in one go.
constexpr size_t kBatch = 256;

}  // namespace

absl::Status RedisRemoval::Remove(std::vector<SampleName> names) {
  for (size_t i = 0; i < names.size(); i += kBatch) {
    const size_t end = std::min(names.size(), i + kBatch);
    absl::Status status = RemoveBatch({names.begin() + i, names.begin() + end});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RedisRemoval::RemoveBatch(std::vector<SampleName> names) {
  while (!names.empty()) {
    const absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, run_, names);
    if (!found.ok()) return found.status();
    std::vector<RedisRequest> requests;
    std::vector<size_t> asked;
    for (size_t i = 0; i < names.size(); ++i) {
      const RedisFound& one = (*found)[i];
      if (!one.exists() || one.stamp.version == kUnreadableVersion ||
          (!names[i].sample.empty() && names[i].sample != one.stamp.sample))
        continue;
      names[i].sample = one.stamp.sample;
      if (!ends_(one)) continue;
      asked.push_back(i);
      requests.push_back(Request(names[i], one.stamp));
    }
    const std::vector<RedisResult> answers = context_.cluster->Execute(requests, context_.Deadline());
    std::vector<SampleName> again;
    std::vector<RedisRequest> tidy;
    absl::Status status;
    for (size_t i = 0; i < asked.size(); ++i) {
      const SampleName& name = names[asked[i]];
      const absl::StatusOr<RedisReply>& reply = answers[i].reply;
      if (!reply.ok()) {
        status = reply.status();
      } else if (reply->integer == redis_scripts::kChanged) {
        again.push_back(name);
      } else {
        TakeEnd(name, (*found)[asked[i]], reply->integer == redis_scripts::kDone, tidy);
      }
    }
    // What fails here is taken out by the next list, and goes when its time is up.
    context_.cluster->Execute(tidy, context_.Deadline());
    for (const size_t i : asked) run_.watches->Notify(names[i].handle, names[i].producer, names[i].sample);
    if (!status.ok()) return status;
    names = std::move(again);
  }
  return absl::OkStatus();
}

RedisRequest RedisRemoval::Request(const SampleName& name, const RedisStamp& stamp) const {
  const RedisSampleKeys keys(context_.keys, run_.life, name.handle);
  const std::string key = keys.Manifest(name.producer);
  const RedisScript& script = redis_scripts::Remove();
  RedisRequest request{.command = script.Call({key}), .key = key, .script = &script};
  request.command.Add(stamp.version)
      .Add(unused_ ? absl::StrCat(stamp.last_used_ms) : "")
      .Add(keys.Channel())
      .Add(ChangeMessage(context_, name));
  return request;
}

void RedisRemoval::TakeEnd(const SampleName& name, const RedisFound& found, bool by_this,
                           std::vector<RedisRequest>& tidy) {
  context_.known.Forget(RedisSampleKeys(context_.keys, run_.life, name.handle).Manifest(name.producer));
  tidy.push_back(run_.index.Drop(name, found.stamp.version));
  result_.samples += by_this ? 1 : 0;
  if (!found.content.ok()) return;  // Its blocks go when their time is up.
  const SampleContent& content = **found.content;
  AddExpiries(content.pieces.all(), context_.reader_grace, tidy);
  run_.expert_counts.Forget(name.producer, content.group);
  if (by_this) result_.bytes += found.manifest().stored_bytes();
}

}  // namespace routing_replay
