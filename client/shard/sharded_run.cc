#include "client/shard/sharded_run.h"

#include <algorithm>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/reader/read_checker.h"
#include "client/reader/read_rows.h"
#include "client/shard/finder.h"
#include "client/shard/sharded_appender.h"
#include "client/shard/sharded_read.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

absl::StatusOr<ReleaseOutcome> Sum(const absl::StatusOr<std::vector<ReleaseOutcome>>& parts) {
  if (!parts.ok()) return parts.status();
  ReleaseOutcome total;
  for (const ReleaseOutcome& part : *parts) AddTo(part, total);
  return total;
}

class ShardedRun final : public Run {
 public:
  ShardedRun(std::shared_ptr<const MemberSet> members, std::string name, const OpenedRun& opened)
      : members_(std::move(members)),
        finder_(std::make_shared<Finder>(members_, name)),
        blocks_{opened.settings.block_rows, opened.settings.codec.value_or(opened.geometry.default_codec()),
                opened.limits.max_message_bytes, opened.limits.max_payload_bytes} {
    for (size_t member = 0; member < members_->size(); ++member) {
      patient_.push_back(MakeRun((*members_)[member].patient(), name, opened));
      brief_.push_back(MakeRun((*members_)[member].brief(), name, opened));
    }
  }

  const std::string& name() const override { return patient_[0]->name(); }
  const Geometry& geometry() const override { return patient_[0]->geometry(); }
  const RunSettings& settings() const override { return patient_[0]->settings(); }
  const ReleaseOutcome& dropped() const override { return patient_[0]->dropped(); }

  std::unique_ptr<Appender> NewAppender(AppenderOptions options) override {
    return MakeShardedAppender(finder_, patient_, blocks_, std::move(options));
  }
  absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload) override {
    return PutWith(options, 1, [&](Run& run) { return run.Put(options, tensor, payload); });
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) override {
    return PutWith(options, rows, [&](Run& run) { return run.PutUnrecorded(options, rows); });
  }

  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override;
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout) override;

  absl::StatusOr<SampleState> Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                   int64_t revision) override {
    return AtSample(sample, producer, [&](Run& run) { return run.Seal(sample, producer, num_tokens, revision); });
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    return AtSample(sample, producer,
                    [&](Run& run) { return run.Truncate(sample, producer, rows, expected_revision); });
  }
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer) override {
    return AtSample(sample, producer, [&](Run& run) { return run.Stat(sample, producer); });
  }
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples, Producer producer) override;
  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                Producer producer) override;
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples,
                                         const ReleaseOptions& options) override {
    return Sum(
        OfAll<ReleaseOutcome>([&](Run& run) { return run.Release(samples, options); }, Needed::kThoseThatAnswer));
  }
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end, const ReleaseOptions& options) override {
    return Sum(OfAll<ReleaseOutcome>([&](Run& run) { return run.ReleaseGroups(begin, end, options); },
                                     Needed::kThoseThatAnswer));
  }
  absl::StatusOr<ReleaseOutcome> Drop() override {
    return Sum(OfAll<ReleaseOutcome>([](Run& run) { return run.Drop(); }, Needed::kThoseWithTheRun));
  }

 private:
  // Calls the member that the append goes to.
  template <typename Call>
  absl::StatusOr<AppendOutcome> PutWith(const AppendOptions& options, int64_t rows, const Call& call) {
    const bool first_life = options.revision == 0 && options.restart_nonce == 0 && !options.attempt;
    const auto place = finder_->PlaceOf({.producer = options.producer,
                                         .sample = options.sample,
                                         .prefix_sample = options.prefix_sample,
                                         .begins = options.row_start == 0 && rows > 0 && first_life});
    if (!place.ok()) return place.status();
    return Named(*place, At(*place, call));
  }

  // Calls one member.
  template <typename Call>
  std::invoke_result_t<Call, Run&> At(size_t member, const Call& call) {
    Member& at = (*members_)[member];
    auto result = call(at.is_gone() ? *brief_[member] : *patient_[member]);
    at.OnEnd(result.status());
    return result;
  }

  // An error of a member says whose it is.
  template <typename T>
  absl::StatusOr<T> Named(size_t member, absl::StatusOr<T> answer) {
    if (answer.ok()) return answer;
    return WithServer(answer.status(), (*members_)[member].endpoint());
  }

  // Calls the member that has the sample, after a search for it where it is not found where it should be.
  template <typename Call>
  absl::StatusOr<SampleState> AtSample(absl::string_view sample, Producer producer, const Call& call) {
    const int64_t handle = SampleHandle(sample);
    const size_t place = finder_->places().FindOrNatural(producer, handle);
    auto result = At(place, call);
    const absl::Status status = result.status();
    if (!IsNoSample(status) && !IsNoRun(status) && !IsUnreachable(status)) return Named(place, std::move(result));
    const auto found = finder_->Search(producer, handle);
    if (!found.ok() && !IsUnreachable(status)) return WithSample(found.status(), sample);
    if (found.ok() && *found && **found != place) return Named(**found, At(**found, call));
    return Named(place, std::move(result));
  }

  template <typename T, typename Call>
  absl::StatusOr<std::vector<T>> OfAll(const Call& call, Needed needed) {
    auto answers = FanOut(members_->size(), [&](size_t member) { return At(member, call); });
    return AnswersOf<T>(*members_, std::move(answers), needed);
  }

  const std::shared_ptr<const MemberSet> members_;
  const std::shared_ptr<Finder> finder_;
  const BlockOptions blocks_;
  std::vector<std::shared_ptr<Run>> patient_;  // By member.
  std::vector<std::shared_ptr<Run>> brief_;
};

absl::Status ShardedRun::Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) {
  request.run = name();
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
  return ReadSharded(*members_, finder_->places(), geometry(), request, sink, deadline);
}

absl::StatusOr<std::vector<SampleRows>> ShardedRun::ReadRows(ReadRequest request, std::chrono::milliseconds timeout) {
  auto ordinals = LayerOrdinals(geometry(), request.layers);
  if (!ordinals.ok()) return ordinals.status();
  RowCollector rows(geometry(), *std::move(ordinals));
  if (absl::Status status = Read(std::move(request), rows, timeout); !status.ok()) return status;
  return rows.Take();
}

// Every member is asked for every sample: a fork may be with any.
absl::StatusOr<std::vector<SampleState>> ShardedRun::StatMany(absl::Span<const std::string> samples,
                                                              Producer producer) {
  auto answers = FanOut(members_->size(), [&](size_t member) {
    return At(member, [&](Run& run) { return run.StatMany(samples, producer); });
  });
  const absl::Status all_answered =
      AnswersOf<std::vector<SampleState>>(*members_, answers, Needed::kThoseWithTheRun).status();
  auto parts = AnswersOf<std::vector<SampleState>>(*members_, std::move(answers), Needed::kThoseThatAnswer);
  if (!parts.ok()) return parts.status();
  std::unordered_map<std::string, SampleState> found;
  for (std::vector<SampleState>& part : *parts) {
    for (SampleState& state : part) found.try_emplace(state.sample, std::move(state));
  }
  std::vector<SampleState> states;
  std::unordered_set<std::string> seen;
  for (const std::string& sample : samples) {
    if (!seen.insert(sample).second) continue;
    const auto at = found.find(sample);
    if (at != found.end()) {
      states.push_back(at->second);
    } else if (!all_answered.ok()) {
      return all_answered;
    }
  }
  return states;
}

absl::StatusOr<std::vector<SampleState>> ShardedRun::List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                          Producer producer) {
  auto parts = OfAll<std::vector<SampleState>>([&](Run& run) { return run.List(groups, producer); }, Needed::kAll);
  if (!parts.ok()) return parts.status();
  std::vector<SampleState> all;
  for (std::vector<SampleState>& part : *parts) std::move(part.begin(), part.end(), std::back_inserter(all));
  std::sort(all.begin(), all.end(), [](const SampleState& a, const SampleState& b) { return a.sample < b.sample; });
  return all;
}

}  // namespace

void AddTo(const ReleaseOutcome& part, ReleaseOutcome& total) {
  total.samples += part.samples;
  total.bytes += part.bytes;
}

std::shared_ptr<Run> MakeShardedRun(std::shared_ptr<const MemberSet> members, std::string name,
                                    const OpenedRun& opened) {
  return std::make_shared<ShardedRun>(std::move(members), std::move(name), opened);
}

}  // namespace routing_replay::client
