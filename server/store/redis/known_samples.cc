#include "server/store/redis/known_samples.h"

#include <algorithm>
#include <utility>

namespace routing_replay::server {
namespace {

// A piece with its block and the words around it.
constexpr int64_t kPieceBytes = 200;

int64_t BytesOf(const SampleContent& content) {
  return content.metadata_bytes() + static_cast<int64_t>(content.pieces.size()) * kPieceBytes;
}

}  // namespace

std::shared_ptr<const SampleContent> KnownSamples::Content(const std::string& key, int64_t version, int64_t birth) {
  MutexLock lock(mutex_);
  const Entry* entry = Find(key);
  if (entry == nullptr || entry->manifest.stamp.version != version || entry->manifest.stamp.birth != birth) {
    return nullptr;
  }
  return entry->manifest.content;
}

std::optional<RedisManifest> KnownSamples::Last(const std::string& key) {
  MutexLock lock(mutex_);
  const Entry* entry = Find(key);
  if (entry == nullptr || entry->manifest.content == nullptr) return std::nullopt;
  return entry->manifest;
}

std::optional<AcknowledgedSample> KnownSamples::Acknowledged(const std::string& key) {
  MutexLock lock(mutex_);
  const Entry* entry = Find(key);
  return entry == nullptr ? std::nullopt : entry->acknowledged;
}

void KnownSamples::PutContent(const std::string& key, const RedisManifest& manifest) {
  MutexLock lock(mutex_);
  Entry& entry = FindOrAdd(key);
  // A look that was on its way for long must not take the place of a newer one.
  if (entry.manifest.content != nullptr && entry.manifest.stamp.version > manifest.stamp.version) return;
  DropContent(entry);
  entry.manifest = manifest;
  entry.bytes = BytesOf(*manifest.content);
  bytes_ += entry.bytes;
  for (auto it = entries_.rbegin(); it != entries_.rend() && bytes_ > byte_limit_; ++it) DropContent(*it);
}

void KnownSamples::Acknowledge(const std::string& key, const AcknowledgedSample& sample) {
  MutexLock lock(mutex_);
  std::optional<AcknowledgedSample>& last = FindOrAdd(key).acknowledged;
  const int64_t kept = last && last->birth == sample.birth ? last->kept_revision : 0;
  last = sample;
  last->kept_revision = std::max(kept, sample.kept_revision);
}

void KnownSamples::NoteKept(const std::string& key, int64_t birth, int64_t revision) {
  MutexLock lock(mutex_);
  Entry* entry = Find(key);
  if (entry == nullptr || !entry->acknowledged || entry->acknowledged->birth != birth) return;
  int64_t& kept = entry->acknowledged->kept_revision;
  kept = std::max(kept, revision);
}

void KnownSamples::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  DropContent(*it->second);
  entries_.erase(it->second);
  by_key_.erase(it);
}

KnownSamples::Entry* KnownSamples::Find(const std::string& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return &*it->second;
}

KnownSamples::Entry& KnownSamples::FindOrAdd(const std::string& key) {
  if (Entry* entry = Find(key)) return *entry;
  while (entries_.size() >= sample_limit_) {
    DropContent(entries_.back());
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({.key = key});
  by_key_[key] = entries_.begin();
  return entries_.front();
}

void KnownSamples::DropContent(Entry& entry) {
  bytes_ -= entry.bytes;
  entry.bytes = 0;
  entry.manifest.content.reset();
}

}  // namespace routing_replay::server
