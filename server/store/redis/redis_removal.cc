#include "server/store/redis/redis_removal.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "server/store/redis/redis_change.h"
#include "server/store/redis/redis_scripts.h"

namespace routing_replay::server {
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
      requests.push_back(Request(names[i], one));
    }
    if (absl::Status status = EndEntries(names, asked, *found); !status.ok()) return status;
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
    context_.cluster->Execute(tidy, context_.TidyDeadline());
    for (const size_t i : asked) run_.watches->Notify(names[i].handle, names[i].producer, names[i].sample);
    if (!status.ok()) return status;
    names = std::move(again);
  }
  return absl::OkStatus();
}

// The samples' notes in the index, before the samples end: an entry without one must say that no sample was lost.
absl::Status RedisRemoval::EndEntries(const std::vector<SampleName>& names, const std::vector<size_t>& asked,
                                      const std::vector<RedisFound>& found) {
  if (with_index()) return absl::OkStatus();
  std::vector<RedisRequest> notes;
  notes.reserve(asked.size());
  for (const size_t i : asked) notes.push_back(run_.index.End(names[i], found[i].stamp.version));
  for (const RedisResult& result : context_.cluster->Execute(notes, context_.Deadline())) {
    if (!result.reply.ok()) return result.reply.status();
  }
  return absl::OkStatus();
}

// The chunks are given their end in the same step: a commit of theirs that is sent again comes before or after it.
RedisRequest RedisRemoval::Request(const SampleName& name, const RedisFound& found) const {
  const RedisSampleKeys sample_keys(context_.keys, run_.life, name.handle);
  std::vector<std::string> keys = {sample_keys.Manifest(name.producer)};
  if (with_index()) {
    const std::vector<std::string> index = run_.index.KeysOf(name);
    keys.insert(keys.end(), index.begin(), index.end());
  }
  if (found.content.ok()) {  // Otherwise they go when their time is up.
    const std::vector<std::string> chunks = ChunkKeys((*found.content)->pieces.all());
    keys.insert(keys.end(), chunks.begin(), chunks.end());
  }
  const RedisScript& script = redis_scripts::Remove();
  RedisRequest request{.command = script.Call(keys), .key = keys.front(), .script = &script};
  request.command.Add(found.stamp.version)
      .Add(unused_ ? absl::StrCat(found.stamp.last_used_ms) : "")
      .Add(sample_keys.Channel())
      .Add(ChangeMessage(context_, name))
      .Add(with_index() ? name.sample : "")
      .Add(context_.reader_grace.count());
  return request;
}

void RedisRemoval::TakeEnd(const SampleName& name, const RedisFound& found, bool by_this,
                           std::vector<RedisRequest>& tidy) {
  context_.known.Forget(RedisSampleKeys(context_.keys, run_.life, name.handle).Manifest(name.producer));
  if (!with_index()) tidy.push_back(run_.index.Drop(name, found.stamp.version));
  result_.samples += by_this ? 1 : 0;
  if (by_this && found.content.ok()) result_.bytes += found.manifest().stored_bytes();
}

}  // namespace routing_replay::server
