#include "server/store/redis/redis_runs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/sample_id.h"
#include "server/store/records/run_record.h"
#include "server/store/redis/redis_change.h"
#include "server/store/redis/redis_scripts.h"
#include "server/store/run_options.h"
#include "server/store/store_errors.h"

namespace routing_replay::server {
namespace {

// Samples of a dropped run that are cleared away in one go.
constexpr size_t kClearBatch = 1024;
constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};

}  // namespace

absl::StatusOr<RunInfo> RedisRuns::Open(absl::string_view run, const Geometry* geometry,
                                        const std::optional<RunOptions>& options) {
  if (absl::Status status = CheckId(run, "run"); !status.ok()) return status;
  if (options) {
    if (absl::Status status = CheckRunOptions(*options); !status.ok()) return status;
  }
  absl::StatusOr<std::shared_ptr<RedisRun>> found = Load(run);
  const bool missing = found.status().code() == absl::StatusCode::kNotFound;
  if (!found.ok() && (!missing || geometry == nullptr)) return found.status();
  bool created = false;
  if (missing) {
    RunInfo info{.run = std::string(run), .geometry = std::make_shared<const Geometry>(*geometry)};
    const absl::StatusOr<RunOptions> in_force =
        OptionsInForce(options, {.ttl = default_ttl_, .codec = geometry->default_codec()}, kRedisDurability);
    if (!in_force.ok()) return in_force.status();
    info.options = *in_force;
    const std::string key = context_.keys.Run(run);
    const RedisScript& script = redis_scripts::OpenRun();
    RedisRequest request{.command = script.Call({key}), .key = key, .script = &script};
    request.command.Add(EncodeRun(info)).Add(absl::StrCat(absl::Hex(context_.content_ids.Next(), absl::kZeroPad16)));
    const RedisResult made = context_.cluster->ExecuteOne(request, context_.Deadline());
    if (!made.reply.ok()) return made.reply.status();
    if (made.reply->elements.size() != 3) return absl::InternalError("redis: the script gave another answer");
    created = made.reply->elements[0].integer == 1;
    found = Take(made.reply->elements[1].text, made.reply->elements[2].text);
    if (!found.ok()) return found.status();
  }
  if (absl::Status status = CheckJoin((*found)->info, geometry, options); !status.ok()) return status;
  if (absl::Status status = List(std::string(run)); !status.ok()) return status;
  RunInfo info = (*found)->info;
  info.created = created;
  return info;
}

// Always after the run was made. Who drops one looks whether it was made again.
absl::Status RedisRuns::List(const std::string& run) {
  const std::string key = context_.keys.Runs();
  return context_.cluster->ExecuteOne({.command = RedisCommand({"SADD", key, run}), .key = key}, context_.Deadline())
      .reply.status();
}

RedisRequest RedisRuns::Get(absl::string_view run) const {
  const std::string key = context_.keys.Run(run);
  return {.command = RedisCommand({"HMGET", key, "record", "life"}), .key = key};
}

absl::StatusOr<std::shared_ptr<RedisRun>> RedisRuns::Take(const RedisResult& got, absl::string_view run) {
  if (!got.reply.ok()) return got.reply.status();
  if (got.reply->elements.size() != 2 || got.reply->elements[0].is_nil()) return NoRunError(run);
  return Take(got.reply->elements[0].text, got.reply->elements[1].text);
}

absl::StatusOr<std::shared_ptr<RedisRun>> RedisRuns::Load(absl::string_view run) {
  return Take(context_.cluster->ExecuteOne(Get(run), context_.Deadline()), run);
}

absl::StatusOr<std::shared_ptr<RedisRun>> RedisRuns::Take(const std::string& record, const std::string& life) {
  absl::StatusOr<RunInfo> info = DecodeRun(record);
  if (!info.ok()) return absl::DataLossError(absl::StrCat("a run's record in Redis: ", info.status().message()));
  MutexLock lock(mutex_);
  std::shared_ptr<RedisRun> run = lives_[life].lock();
  if (run == nullptr) {
    run = std::make_shared<RedisRun>(context_, *std::move(info), life);
    std::erase_if(lives_, [](const auto& entry) { return entry.second.expired(); });
    lives_[life] = run;
  }
  run->ended = false;
  runs_[run->info.run] = run;
  return run;
}

absl::StatusOr<std::shared_ptr<RedisRun>> RedisRuns::Find(absl::string_view run) {
  {
    MutexLock lock(mutex_);
    const auto it = runs_.find(std::string(run));
    if (it != runs_.end() && !it->second->ended) return it->second;
    if (it != runs_.end()) runs_.erase(it);
  }
  return Load(run);
}

absl::StatusOr<RedisRuns::Page> RedisRuns::LoadPage(absl::string_view after, size_t limit) {
  const std::string key = context_.keys.Runs();
  const RedisResult listed =
      context_.cluster->ExecuteOne({.command = RedisCommand({"SMEMBERS", key}), .key = key}, context_.Deadline());
  if (!listed.reply.ok()) return listed.reply.status();
  std::vector<std::string> names;
  for (const RedisReply& name : listed.reply->elements) {
    if (name.text > after) names.push_back(name.text);
  }
  const size_t count = std::min(limit, names.size());
  std::partial_sort(names.begin(), names.begin() + static_cast<ptrdiff_t>(count), names.end());
  Page page;
  if (count < names.size()) page.last = names[count - 1];
  names.resize(count);
  std::vector<RedisRequest> requests;
  requests.reserve(names.size());
  for (const std::string& name : names) requests.push_back(Get(name));
  const std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<std::shared_ptr<RedisRun>> run = Take(results[i], names[i]);
    if (run.status().code() == absl::StatusCode::kNotFound) continue;  // Being made or dropped.
    if (absl::IsDataLoss(run.status())) {
      context_.trouble.Tell("a run's record", run.status());
      continue;
    }
    if (!run.ok()) return run.status();
    page.runs.push_back(*std::move(run));
  }
  return page;
}

absl::StatusOr<int64_t> RedisRuns::Count() {
  const std::string key = context_.keys.Runs();
  const RedisResult counted =
      context_.cluster->ExecuteOne({.command = RedisCommand({"SCARD", key}), .key = key}, context_.Deadline());
  if (!counted.reply.ok()) return counted.reply.status();
  return counted.reply->integer;
}

absl::StatusOr<ReleaseResult> RedisRuns::Drop(absl::string_view name) {
  const absl::StatusOr<std::shared_ptr<RedisRun>> run = Load(name);
  if (!run.ok()) return run.status();
  const auto sums = SumsOf(context_, {&*run, 1});
  if (!sums.ok()) return sums.status();
  // First of all the note of what is to be cleared away; it is looked at only when the run is gone.
  const std::string dropped = context_.keys.Dropped();
  RedisCommand note({"ZADD", dropped});
  note.Add(context_.time.NowMs() + context_.reader_grace.count()).Add(EncodeRun((*run)->info) + (*run)->life);
  RedisResult done = context_.cluster->ExecuteOne({.command = std::move(note), .key = dropped}, context_.Deadline());
  if (!done.reply.ok()) return done.reply.status();
  const std::string key = context_.keys.Run(name);
  const RedisScript& script = redis_scripts::DropRun();
  RedisRequest request{.command = script.Call({key}), .key = key, .script = &script};
  request.command.Add((*run)->life)
      .Add(context_.keys.RunChannel(name))
      .Add(absl::StrCat(context_.server, " 0 ", (*run)->life));
  done = context_.cluster->ExecuteOne(request, context_.Deadline());
  if (!done.reply.ok()) return done.reply.status();
  (*run)->ended = true;
  if (done.reply->integer != 1) return NoRunError(name);
  const std::string runs = context_.keys.Runs();
  done =
      context_.cluster->ExecuteOne({.command = RedisCommand({"SREM", runs, name}), .key = runs}, context_.Deadline());
  if (done.reply.ok() && Load(name).ok()) List(std::string(name)).IgnoreError();
  (*run)->watches->NotifyAll();
  return ReleaseResult{sums->front().samples, sums->front().stored_bytes};
}

void RedisRuns::ClearDropped() {
  const std::string key = context_.keys.Dropped();
  RedisCommand command({"ZRANGEBYSCORE", key, "-inf"});
  command.Add(context_.time.NowMs()).Add("LIMIT").Add(0).Add(1);
  const RedisResult due =
      context_.cluster->ExecuteOne({.command = std::move(command), .key = key}, context_.Deadline());
  if (!due.reply.ok() || due.reply->elements.empty()) return;
  const std::string& note = due.reply->elements[0].text;
  constexpr size_t kLifeBytes = 16;
  if (note.size() < kLifeBytes) return;
  const std::string life = note.substr(note.size() - kLifeBytes);
  absl::StatusOr<RunInfo> info = DecodeRun(note.substr(0, note.size() - kLifeBytes));
  if (info.ok()) {
    const auto now = Load(info->run);
    if (!now.ok() && now.status().code() != absl::StatusCode::kNotFound) return;
    if (!now.ok() || (*now)->life != life) {
      RedisRun run(context_, *std::move(info), life);
      const absl::StatusOr<bool> more = ClearSome(run);
      if (!more.ok() || *more) return;  // The next time.
    }
  }
  context_.cluster->ExecuteOne({.command = RedisCommand({"ZREM", key, note}), .key = key}, context_.Deadline());
}

absl::StatusOr<bool> RedisRuns::ClearSome(RedisRun& run) {
  for (const Producer producer : kProducers) {
    const absl::StatusOr<RedisIndex::Page> page = run.index.After(producer, "", kClearBatch);
    if (!page.ok()) return page.status();
    if (page->entries.empty()) continue;
    std::vector<RedisRequest> looks;
    std::vector<SampleName> names;
    for (const RedisEntry& entry : page->entries) {
      names.push_back({entry.sample, context_.handle_of(entry.sample), producer});
      const std::string key = RedisSampleKeys(context_.keys, run.life, names.back().handle).Manifest(producer);
      looks.push_back({.command = RedisCommand({"HGETALL", key}), .key = key});
    }
    std::vector<RedisResult> found = context_.cluster->Execute(looks, context_.Deadline());
    std::vector<RedisRequest> ends;
    for (size_t i = 0; i < names.size(); ++i) {
      if (absl::IsDataLoss(found[i].reply.status())) found[i].reply = RedisReply();  // None of ours, and it goes, too.
      if (!found[i].reply.ok()) return found[i].reply.status();
      const RedisHome home(PlaceOf(context_, run, names[i]), context_.block_ids);
      const ParsedManifest manifest = ParseManifest(*std::move(found[i].reply), run.info.options.block_rows, home);
      std::vector<std::string> keys = {looks[i].key};
      if (manifest.stamp.version != 0 && manifest.content.ok()) {
        for (const RowPiece& piece : (*manifest.content)->pieces.all()) {
          for (std::string& key : static_cast<const RedisBlock&>(*piece.stored).chunk_keys()) keys.push_back(key);
        }
      }
      for (const std::string& key : keys) ends.push_back({.command = RedisCommand({"UNLINK", key}), .key = key});
    }
    for (const RedisResult& result : context_.cluster->Execute(ends, context_.Deadline())) {
      if (!result.reply.ok()) return result.reply.status();
    }
    std::vector<RedisRequest> drops;
    for (size_t i = 0; i < names.size(); ++i) drops.push_back(run.index.Drop(names[i], page->entries[i].version));
    for (const RedisResult& result : context_.cluster->Execute(drops, context_.Deadline())) {
      if (!result.reply.ok()) return result.reply.status();
    }
    return true;
  }
  std::vector<RedisRequest> rest;
  for (const std::string& key : run.index.keys())
    rest.push_back({.command = RedisCommand({"UNLINK", key}), .key = key});
  context_.cluster->Execute(rest, context_.Deadline());
  return false;
}

absl::StatusOr<std::vector<RedisIndex::Sums>> SumsOf(RedisContext& context,
                                                     absl::Span<const std::shared_ptr<RedisRun>> runs) {
  std::vector<RedisRequest> requests;
  std::vector<size_t> ends;
  for (const std::shared_ptr<RedisRun>& run : runs) {
    for (RedisRequest& request : run->index.GetSums()) requests.push_back(std::move(request));
    ends.push_back(requests.size());
  }
  const std::vector<RedisResult> results = context.cluster->Execute(requests, context.Deadline());
  std::vector<RedisIndex::Sums> sums(runs.size());
  for (size_t i = 0, at = 0; i < runs.size(); ++i) {
    for (; at < ends[i]; ++at) {
      if (!results[at].reply.ok()) return results[at].reply.status();
      RedisIndex::AddSums(*results[at].reply, sums[i]);
    }
  }
  return sums;
}

}  // namespace routing_replay::server
