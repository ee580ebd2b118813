#include "server/store/redis/redis_index.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/redis/redis_scripts.h"

namespace routing_replay::server {
namespace {

constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};

// "VERSION ROWS SEALED BYTES REVISION GROUP"
RedisEntry ParseEntry(std::string sample, const std::string& text) {
  RedisEntry entry{.sample = std::move(sample)};
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  int64_t group = 0;
  if (words.size() != 6 || !absl::SimpleAtoi(words[0], &entry.version)) return entry;
  if (!absl::SimpleAtoi(words[1], &entry.rows) || !absl::SimpleAtoi(words[4], &entry.revision)) return entry;
  if (absl::SimpleAtoi(words[5], &group)) entry.group = group;
  entry.sealed = words[2] == "1";
  return entry;
}

// "ROWS SEALED BYTES REVISION"
std::string EntryWords(const RedisManifest& manifest) {
  const SampleContent& content = *manifest.content;
  return absl::StrCat(content.rows(), content.sealed() ? " 1 " : " 0 ", manifest.stored_bytes(), " ", content.revision);
}

std::vector<std::string> Texts(RedisReply reply) {
  std::vector<std::string> texts;
  for (RedisReply& element : reply.elements) texts.push_back(std::move(element.text));
  return texts;
}

}  // namespace

RedisIndex::RedisIndex(RedisContext& context, const std::string& life, Clock::Duration ttl)
    : context_(context), lives_(ttl) {
  for (int i = 0; i < RedisBucketKeys::kBuckets; ++i) buckets_.emplace_back(context.keys, life, i);
}

std::vector<std::string> RedisIndex::KeysOf(const SampleName& name) const {
  const RedisBucketKeys& bucket = buckets_[RedisBucketKeys::Of(name.handle)];
  return {bucket.Names(name.producer), bucket.Entries(name.producer), bucket.Due(name.producer), bucket.Counts()};
}

std::string RedisIndex::DueMs(int64_t last_used_ms) const {
  return absl::StrCat(last_used_ms + (lives_.ttl + lives_.grain()).count());
}

RedisRequest RedisIndex::Mark(const SampleName& name, bool made) const {
  const std::vector<std::string> keys = KeysOf(name);
  const RedisScript& script = redis_scripts::MarkEntry();
  RedisRequest request{.command = script.Call(keys), .key = keys[0], .script = &script};
  const int64_t now_ms = context_.time.NowMs();
  request.command.Add(name.sample).Add(DueMs(now_ms)).Add(lives_.index().count()).Add(made ? absl::StrCat(now_ms) : "");
  return request;
}

RedisRequest RedisIndex::End(const SampleName& name, int64_t version) const {
  const std::vector<std::string> keys = KeysOf(name);
  const RedisScript& script = redis_scripts::EndEntry();
  RedisRequest request{.command = script.Call(keys), .key = keys[0], .script = &script};
  request.command.Add(name.sample).Add(version);
  return request;
}

absl::StatusOr<std::vector<std::optional<RedisEntry>>> RedisIndex::LeftOf(absl::Span<const SampleName> names) const {
  const RedisScript& script = redis_scripts::LeftEntry();
  std::vector<RedisRequest> requests;
  for (const SampleName& name : names) {
    const std::vector<std::string> keys = KeysOf(name);
    requests.push_back({.command = script.Call(keys), .key = keys[0], .script = &script});
    requests.back().command.Add(name.sample).Add(context_.time.NowMs());
  }
  std::vector<std::optional<RedisEntry>> left(names.size());
  const std::vector<RedisResult> answers = context_.cluster->Execute(requests, context_.Deadline());
  for (size_t i = 0; i < names.size(); ++i) {
    const auto& reply = answers[i].reply;
    if (!reply.ok()) return reply.status();
    if (reply->text.empty()) continue;
    left[i] = ParseEntry(names[i].sample, reply->text);
    if (!left[i]->group) return absl::InternalError("redis: the answer is no entry of an index");
  }
  return left;
}

RedisRequest RedisIndex::Put(const SampleName& name, const RedisManifest& manifest) const {
  const std::vector<std::string> keys = KeysOf(name);
  const RedisScript& script = redis_scripts::PutEntry();
  RedisRequest request{.command = script.Call(keys), .key = keys[0], .script = &script};
  request.command.Add(name.sample).Add(manifest.stamp.version);
  for (const std::string& word : PutWords(name, manifest, /*note=*/true)) request.command.Add(word);
  return request;
}

std::vector<std::string> RedisIndex::PutWords(const SampleName& name, const RedisManifest& manifest, bool note) const {
  const int64_t now_ms = manifest.stamp.last_used_ms;
  if (note) kept_ms_[name.producer == Producer::kTrainer][RedisBucketKeys::Of(name.handle)] = now_ms;
  return {DueMs(now_ms), absl::StrCat(lives_.index().count()), note ? "1" : "0", EntryWords(manifest),
          absl::StrCat(manifest.content->group)};
}

std::vector<std::string> RedisIndex::ChangeWords(const SampleName& name, const RedisManifest* before,
                                                 const RedisManifest& next) const {
  const int64_t kept_ms = kept_ms_[name.producer == Producer::kTrainer][RedisBucketKeys::Of(name.handle)];
  const bool note = before == nullptr ||
                    std::min(before->stamp.last_used_ms, kept_ms) + lives_.grain().count() <= next.stamp.last_used_ms;
  std::vector<std::string> words = PutWords(name, next, note);
  if (before == nullptr) return words;
  const SampleContent &was = *before->content, &is = *next.content;
  words.push_back(absl::StrCat(EntryWords(*before), " ", was.group));
  words.push_back(absl::StrCat(int64_t{is.sealed()} - int64_t{was.sealed()}));
  words.push_back(absl::StrCat(is.rows() - was.rows()));
  words.push_back(absl::StrCat(next.stored_bytes() - before->stored_bytes()));
  return words;
}

RedisRequest RedisIndex::Drop(const SampleName& name, int64_t version) const {
  const std::vector<std::string> keys = KeysOf(name);
  const RedisScript& script = redis_scripts::DropEntry();
  RedisRequest request{.command = script.Call(keys), .key = keys[0], .script = &script};
  request.command.Add(name.sample).Add(version);
  return request;
}

// Each part gives some names; they are in order, without a gap, up to the first place where a part may have more.
absl::StatusOr<RedisIndex::Page> RedisIndex::After(Producer producer, absl::string_view id, size_t limit) const {
  const size_t part = 8 + limit * 2 / buckets_.size();
  std::vector<RedisRequest> requests;
  for (const RedisBucketKeys& bucket : buckets_) {
    const std::string key = bucket.Names(producer);
    RedisCommand command({"ZRANGEBYLEX", key});
    command.Add(id.empty() ? "-" : absl::StrCat("(", id)).Add("+").Add("LIMIT").Add(0).Add(static_cast<int64_t>(part));
    requests.push_back({.command = std::move(command), .key = key});
  }
  std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
  std::vector<std::vector<std::string>> names;
  std::optional<std::string> end;  // The last name that all are known up to.
  for (RedisResult& result : results) {
    if (!result.reply.ok()) return result.reply.status();
    names.push_back(Texts(*std::move(result.reply)));
    if (names.back().size() == part && (!end || names.back().back() < *end)) end = names.back().back();
  }
  for (std::vector<std::string>& of_part : names) {
    while (end && !of_part.empty() && of_part.back() > *end) of_part.pop_back();
  }
  Page page{.more = end.has_value()};
  if (absl::Status status = AddEntries(producer, names, page.entries); !status.ok()) return status;
  return page;
}

absl::Status RedisIndex::AddEntries(Producer producer, std::vector<std::vector<std::string>>& names,
                                    std::vector<RedisEntry>& entries) const {
  std::vector<RedisRequest> requests;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (names[i].empty()) continue;
    const std::string key = buckets_[i].Entries(producer);
    RedisCommand command({"HMGET", key});
    for (const std::string& name : names[i]) command.Add(name);
    requests.push_back({.command = std::move(command), .key = key});
  }
  std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
  size_t next = 0;
  for (std::vector<std::string>& of_part : names) {
    if (of_part.empty()) continue;
    RedisResult& result = results[next++];
    if (!result.reply.ok()) return result.reply.status();
    if (result.reply->elements.size() != of_part.size()) return absl::InternalError("redis: HMGET gave too few values");
    for (size_t i = 0; i < of_part.size(); ++i) {
      entries.push_back(ParseEntry(std::move(of_part[i]), result.reply->elements[i].text));
    }
  }
  std::sort(entries.begin(), entries.end(),
            [](const RedisEntry& a, const RedisEntry& b) { return a.sample < b.sample; });
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RedisIndex::DueEntry>> RedisIndex::Due(int64_t limit) const {
  const std::string now = absl::StrCat(context_.time.NowMs());
  std::vector<RedisRequest> requests;
  for (const RedisBucketKeys& bucket : buckets_) {
    for (const Producer producer : kProducers) {
      const std::string key = bucket.Due(producer);
      RedisCommand command({"ZRANGEBYSCORE", key, "-inf", now, "LIMIT", "0"});
      command.Add(limit);
      requests.push_back({.command = std::move(command), .key = key});
    }
  }
  std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
  std::vector<DueEntry> due;
  std::vector<RedisRequest> versions;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].reply.ok()) return results[i].reply.status();
    const Producer producer = kProducers[i % std::size(kProducers)];
    for (std::string& sample : Texts(*std::move(results[i].reply))) {
      const std::string key = buckets_[i / std::size(kProducers)].Entries(producer);
      versions.push_back({.command = RedisCommand({"HGET", key, sample}), .key = key});
      const int64_t handle = context_.handle_of(sample);
      due.push_back({.name = {std::move(sample), handle, producer}});
    }
  }
  results = context_.cluster->Execute(versions, context_.Deadline());
  for (size_t i = 0; i < due.size(); ++i) {
    if (!results[i].reply.ok()) return results[i].reply.status();
    due[i].version = ParseEntry("", results[i].reply->text).version;
  }
  return due;
}

std::vector<RedisRequest> RedisIndex::GetSums() const {
  std::vector<RedisRequest> requests;
  for (const RedisBucketKeys& bucket : buckets_) {
    const std::string key = bucket.Counts();
    requests.push_back({.command = RedisCommand({"HMGET", key, "samples", "sealed", "rows", "bytes"}), .key = key});
  }
  return requests;
}

void RedisIndex::AddSums(const RedisReply& reply, Sums& sums) {
  int64_t* const fields[] = {&sums.samples, &sums.sealed_samples, &sums.committed_rows, &sums.stored_bytes};
  for (size_t i = 0; i < std::size(fields) && i < reply.elements.size(); ++i) {
    int64_t number = 0;
    if (absl::SimpleAtoi(reply.elements[i].text, &number)) *fields[i] += number;
  }
}

std::vector<std::string> RedisIndex::keys() const {
  std::vector<std::string> keys;
  for (const RedisBucketKeys& bucket : buckets_) {
    for (const Producer producer : kProducers) {
      keys.insert(keys.end(), {bucket.Names(producer), bucket.Entries(producer), bucket.Due(producer)});
    }
    keys.push_back(bucket.Counts());
  }
  return keys;
}

}  // namespace routing_replay::server
