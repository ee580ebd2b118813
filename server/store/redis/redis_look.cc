#include "server/store/redis/redis_look.h"

#include <utility>

#include "routing_replay/wire/error_detail.h"
#include "server/store/store_errors.h"

namespace routing_replay::server {
namespace {

class Look {
 public:
  Look(RedisContext& context, RedisRun& run, absl::Span<const SampleName> names)
      : context_(context), run_(run), names_(names), found_(names.size()) {}

  absl::StatusOr<std::vector<RedisFound>> Run() {
    if (absl::Status status = AskAll(); !status.ok()) return status;
    if (absl::Status status = AskAgain(); !status.ok()) return status;
    return std::move(found_);
  }

 private:
  // Of those whose content is known, only whether it is still that one.
  absl::Status AskAll() {
    std::vector<RedisRequest> requests = {AskForLife(context_, run_)};
    std::vector<bool> known;
    for (const SampleName& name : names_) {
      keys_.push_back(RedisSampleKeys(context_.keys, run_.life, name.handle).Manifest(name.producer));
      known.push_back(context_.known.Last(keys_.back()).has_value());
      RedisCommand command = known.back() ? GetStampCommand(keys_.back()) : RedisCommand({"HGETALL", keys_.back()});
      requests.push_back({.command = std::move(command), .key = keys_.back()});
    }
    std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
    if (absl::Status status = CheckLifeOf(run_, results[0]); !status.ok()) return status;
    for (size_t i = 0; i < names_.size(); ++i) {
      absl::StatusOr<RedisReply>& reply = results[i + 1].reply;
      if (known[i] && reply.ok()) {
        TakeStamp(i, *reply);
      } else if (absl::Status status = TakeManifest(i, std::move(reply)); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  void TakeStamp(size_t i, const RedisReply& reply) {
    absl::StatusOr<RedisStamp> stamp = ParseStamp(reply);
    if (!stamp.ok()) return outdated_.push_back(i);  // The whole manifest tells what is wrong with it.
    found_[i].stamp = *std::move(stamp);
    if (!found_[i].exists()) return;
    auto content = context_.known.Content(keys_[i], found_[i].stamp.version, found_[i].stamp.birth);
    if (content == nullptr) {
      outdated_.push_back(i);
    } else {
      found_[i].content = std::move(content);
    }
  }

  // What is damaged is so for the one sample alone.
  absl::Status TakeManifest(size_t i, absl::StatusOr<RedisReply> reply) {
    RedisFound& found = found_[i];
    if (absl::IsDataLoss(reply.status())) {
      found.stamp = {.version = kUnreadableVersion};
      found.content =
          WithSample(MakeError(absl::StatusCode::kDataLoss, reply.status().message(), {.reason = Reason::kChecksum}),
                     names_[i].sample);
    } else if (!reply.ok()) {
      return reply.status();
    } else {
      const RedisHome home(PlaceOf(context_, run_, names_[i]), context_.block_ids);
      ParsedManifest parsed = ParseManifest(*std::move(reply), run_.info.options.block_rows, home);
      found.stamp = std::move(parsed.stamp);
      if (found.exists()) found.content = std::move(parsed.content);
    }
    if (found.exists() && found.stamp.sample.empty()) found.stamp.sample = names_[i].sample;
    if (found.exists() && found.content.ok()) context_.known.PutContent(keys_[i], found.manifest());
    return absl::OkStatus();
  }

  absl::Status AskAgain() {
    if (outdated_.empty()) return absl::OkStatus();
    std::vector<RedisRequest> requests;
    for (const size_t i : outdated_) {
      requests.push_back({.command = RedisCommand({"HGETALL", keys_[i]}), .key = keys_[i]});
    }
    std::vector<RedisResult> results = context_.cluster->Execute(requests, context_.Deadline());
    for (size_t i = 0; i < outdated_.size(); ++i) {
      if (absl::Status status = TakeManifest(outdated_[i], std::move(results[i].reply)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  RedisContext& context_;
  RedisRun& run_;
  const absl::Span<const SampleName> names_;
  std::vector<std::string> keys_;
  std::vector<size_t> outdated_;
  std::vector<RedisFound> found_;
};

}  // namespace

SampleState StateOf(const RedisContext& context, const SampleName& name, const RedisFound& found) {
  SampleState state = StateOf(name, **found.content);
  state.stored_bytes = found.manifest().stored_bytes();
  state.idle_ms = std::max<int64_t>(0, context.time.NowMs() - found.stamp.last_used_ms);
  return state;
}

std::shared_ptr<const RedisPlace> PlaceOf(const RedisContext& context, const RedisRun& run, const SampleName& name) {
  return std::make_shared<const RedisPlace>(RedisPlace{.cluster = context.cluster,
                                                       .timeout = context.timeout,
                                                       .geometry = run.info.geometry,
                                                       .keys = RedisSampleKeys(context.keys, run.life, name.handle),
                                                       .producer = name.producer,
                                                       .sample = name.sample});
}

absl::StatusOr<std::vector<RedisFound>> LookAt(RedisContext& context, RedisRun& run,
                                               absl::Span<const SampleName> names) {
  return Look(context, run, names).Run();
}

RedisRequest AskForLife(const RedisContext& context, const RedisRun& run) {
  const std::string key = context.keys.Run(run.info.run);
  return {.command = RedisCommand({"HGET", key, "life"}), .key = key};
}

absl::Status CheckLifeOf(RedisRun& run, const RedisResult& answer) {
  if (!answer.reply.ok()) return answer.reply.status();
  if (answer.reply->text == run.life) return absl::OkStatus();
  run.ended = true;
  return NoRunError(run.info.run);
}

}  // namespace routing_replay::server
