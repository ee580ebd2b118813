#include "routing_replay/trainer/collective.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

// The least that a word can be: what a rank says that has nothing to say.
inline constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();

struct Extremes {
  int64_t least = 0;
  int64_t greatest = 0;
};

// Each call appends the words of one fact.
class WordWriter {
 public:
  // The greatest of what ranks say.
  void Greatest(std::optional<int64_t> value) { words_.push_back(value.value_or(kNothing)); }
  // The least: ~ turns the order around and, unlike a minus, has a result for every number.
  void Least(std::optional<int64_t> value) { words_.push_back(value ? ~*value : kNothing); }
  // Both.
  void Both(std::optional<int64_t> value) {
    Greatest(value);
    Least(value);
  }
  std::vector<int64_t> Take() { return std::move(words_); }

 private:
  std::vector<int64_t> words_;
};

// The same calls in the same order, on the maxima.
class WordReader {
 public:
  explicit WordReader(absl::Span<const int64_t> words) : words_(words) {}

  // Not set where no rank said anything. No rank may say kNothing here, or ~kNothing to Least.
  std::optional<int64_t> Greatest() {
    const int64_t word = Next();
    if (word == kNothing) return std::nullopt;
    return word;
  }
  std::optional<int64_t> Least() {
    const int64_t word = Next();
    if (word == kNothing) return std::nullopt;
    return ~word;
  }
  // Of any numbers: what is kNothing in one of the words is not in the other.
  std::optional<Extremes> Both() {
    const int64_t greatest = Next(), inverted = Next();
    if (greatest == kNothing && inverted == kNothing) return std::nullopt;
    return Extremes{~inverted, greatest};
  }

 private:
  int64_t Next() {
    const int64_t word = words_.front();
    words_.remove_prefix(1);
    return word;
  }

  absl::Span<const int64_t> words_;
};

namespace {

// Raised when the words of a round change their meaning. Those of the first round never change their number.
constexpr int64_t kVersion = 1;

absl::Status Fail(Reason reason, absl::string_view field, absl::string_view what, absl::string_view sample = "") {
  const std::string name = absl::StrCat("agreement.", field);
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(name, ": ", what),
                   {.reason = reason, .field = name, .sample = std::string(sample)});
}

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return Invalid(absl::StrCat("agreement.", field), what);
}

absl::Status CheckStep(const StepReport& step) {
  if (step.policy > MissingPolicy::kDrop) return Wrong("policy", "must be strict, live or drop");
  for (size_t i = 0; i < step.samples.size(); ++i) {
    const SampleReport& report = step.samples[i];
    const auto wrong = [i](absl::string_view field, absl::string_view what) {
      return Wrong(absl::StrCat("samples[", i, "].", field), what);
    };
    const bool unknown = report.status == SampleStatus::kUnspecified && !step.source_failed;
    if (unknown || report.status > kLastSampleStatus) return wrong("status", "is none");
    if (report.num_tokens.value_or(0) < 0) return wrong("num_tokens", "is below 0");
    if (report.revision.value_or(0) < 0) return wrong("revision", "is below 0");
    if (report.oldest_weight_version.value_or(0) < kUnknownWeightVersion)
      return wrong("oldest_weight_version", "is below -1");
    if (report.newest_weight_version.value_or(0) < kUnknownWeightVersion)
      return wrong("newest_weight_version", "is below -1");
  }
  return absl::OkStatus();
}

int64_t HandleOf(const SampleReport& report) {
  return report.sample.empty() ? BareHandle(report.handle) : SampleHandle(report.sample);
}

std::string NameOf(const SampleReport& report) { return DescribeSample(report.sample, report.handle); }

// Statuses from good to bad. Bad ones have no order of their own: that of their numbers is as good as any, if only all
// ranks have the same; nothing is worse than not to know.
constexpr int64_t kSourceFailed = 255;
int64_t Badness(SampleStatus status) {
  return status == SampleStatus::kUnspecified ? kSourceFailed : static_cast<int64_t>(status);
}
absl::StatusOr<SampleStatus> StatusOf(int64_t badness) {
  if (badness == kSourceFailed) return SampleStatus::kUnspecified;
  if (badness < Badness(SampleStatus::kOk) || badness > Badness(kLastSampleStatus)) {
    return Wrong("words", absl::StrCat(badness, " is no status"));
  }
  return static_cast<SampleStatus>(badness);
}

absl::StatusOr<std::optional<int32_t>> RankOf(std::optional<int64_t> rank) {
  if (!rank) return std::nullopt;
  if (*rank < 0 || *rank > std::numeric_limits<int32_t>::max()) {
    return Wrong("words", absl::StrCat(*rank, " is no rank"));
  }
  return static_cast<int32_t>(*rank);
}

// That `reduced` can be the maxima of `own` and others.
absl::Status CheckReduced(absl::Span<const int64_t> own, absl::Span<const int64_t> reduced) {
  for (size_t i = 0; i < own.size(); ++i) {
    if (reduced[i] < own[i]) {
      return Wrong("words", absl::StrCat("number ", i, " came back as ", reduced[i], ", below this rank's ", own[i]));
    }
  }
  return absl::OkStatus();
}

std::optional<int64_t> Bits(std::optional<uint64_t> value) {
  if (!value) return std::nullopt;
  return static_cast<int64_t>(*value);
}

std::optional<int64_t> OnlyIf(bool condition, int64_t value) {
  if (!condition) return std::nullopt;
  return value;
}

std::vector<int64_t> StepWords(int32_t rank, const StepReport& step, bool rejected) {
  WordWriter out;
  out.Both(kVersion);
  out.Least(OnlyIf(rejected, rank));
  out.Both(static_cast<int64_t>(step.samples.size()));
  out.Both(static_cast<int64_t>(step.policy));
  out.Both(static_cast<int64_t>(step.geometry_fingerprint));
  out.Least(OnlyIf(step.source_failed, rank));
  return out.Take();
}

void WriteSample(int32_t rank, const SampleReport& report, bool source_failed, WordWriter& out) {
  const SampleStatus status = source_failed ? SampleStatus::kUnspecified : report.status;
  const bool there = status == SampleStatus::kOk;
  const SampleReport known = there ? report : SampleReport{};
  out.Both(HandleOf(report));
  out.Greatest(Badness(status));
  out.Least(OnlyIf(!there, rank));
  out.Greatest(OnlyIf(there, rank));
  out.Both(known.num_tokens);
  out.Both(known.revision);
  out.Both(Bits(known.content_id));
  out.Least(known.oldest_weight_version);
  out.Greatest(known.newest_weight_version);
}

std::vector<int64_t> SampleWords(int32_t rank, const StepReport& step) {
  WordWriter out;
  for (const SampleReport& report : step.samples) WriteSample(rank, report, step.source_failed, out);
  return out.Take();
}

// What the ranks say of a sample.
struct Combined {
  Extremes handle;
  SampleDecision decision;
  std::optional<Extremes> num_tokens, revision, content_id;
};

absl::StatusOr<Combined> ReadSample(WordReader& in) {
  Combined said;
  said.handle = in.Both().value_or(Extremes{});
  const auto status = StatusOf(in.Greatest().value_or(kSourceFailed));
  if (!status.ok()) return status.status();
  said.decision.status = *status;
  const auto missing_on = RankOf(in.Least());
  if (!missing_on.ok()) return missing_on.status();
  said.decision.missing_on = *missing_on;
  if (missing_on->has_value() != (*status != SampleStatus::kOk)) {
    return Wrong("words", "a sample is missing without a rank that misses it, or the other way round");
  }
  said.decision.missing_everywhere = !in.Greatest();
  said.num_tokens = in.Both();
  said.revision = in.Both();
  said.content_id = in.Both();
  said.decision.oldest_weight_version = in.Least();
  said.decision.newest_weight_version = in.Greatest();
  if (said.num_tokens) said.decision.num_tokens = said.num_tokens->greatest;
  if (said.revision) said.decision.revision = said.revision->greatest;
  if (said.content_id) said.decision.content_id = static_cast<uint64_t>(said.content_id->greatest);
  return said;
}

absl::Status CheckSame(std::optional<Extremes> values, Reason reason, absl::string_view field,
                       const SampleReport& report) {
  if (!values || values->least == values->greatest) return absl::OkStatus();
  const bool bits = field == "content_id";
  const auto text = [bits](int64_t value) {
    return bits ? absl::StrCat(static_cast<uint64_t>(value)) : absl::StrCat(value);
  };
  return Fail(reason, field,
              absl::StrCat("of sample ", NameOf(report), " is ", text(values->least), " on one rank and ",
                           text(values->greatest), " on another"),
              report.sample);
}

absl::Status CheckSameContent(const Combined& said, const SampleReport& report) {
  absl::Status status = CheckSame(said.num_tokens, Reason::kRowCount, "num_tokens", report);
  status.Update(CheckSame(said.revision, Reason::kOldRevision, "revision", report));
  status.Update(CheckSame(said.content_id, Reason::kConflictingRows, "content_id", report));
  return status;
}

absl::Status Missing(const SampleDecision& decision, const SampleReport& report, int64_t missing, size_t samples) {
  return Fail(MissingReason(decision.status), "samples",
              absl::StrCat("sample ", NameOf(report), " is ", ReportedStatusName(decision.status), ", first on rank ",
                           *decision.missing_on, "; ", missing, " of ", samples, " samples are missing"),
              report.sample);
}

void Count(SampleDecision said, MissingPolicy policy, StepDecision& decision) {
  if (said.missing_on) {
    said.action = policy == MissingPolicy::kDrop ? StepAction::kDrop : StepAction::kLive;
    ++decision.fallen_back;
  } else {
    ++decision.replayed;
  }
  ++decision.counts[said.status];
  decision.samples.push_back(said);
}

absl::StatusOr<StepDecision> Decide(const StepReport& step, absl::Span<const int64_t> reduced) {
  std::vector<Combined> said;
  WordReader in(reduced);
  for (size_t i = 0; i < step.samples.size(); ++i) {
    auto read = ReadSample(in);
    if (!read.ok()) return read.status();
    said.push_back(*std::move(read));
    const Extremes handle = said.back().handle;
    if (handle.least != handle.greatest) {
      return Fail(Reason::kField, "samples",
                  absl::StrCat("number ", i, " has handle ", handle.least, " on one rank and ", handle.greatest,
                               " on another"));
    }
  }
  StepDecision decision;
  for (size_t i = 0; i < said.size(); ++i) {
    if (absl::Status status = CheckSameContent(said[i], step.samples[i]); !status.ok()) return status;
    Count(said[i].decision, step.policy, decision);
  }
  if (step.policy != MissingPolicy::kStrict || decision.fallen_back == 0) return decision;
  const auto first = std::find_if(decision.samples.begin(), decision.samples.end(),
                                  [](const SampleDecision& sample) { return sample.missing_on.has_value(); });
  return Missing(*first, step.samples[first - decision.samples.begin()], decision.fallen_back, said.size());
}

absl::Status CheckEqual(std::optional<Extremes> values, Reason reason, absl::string_view field) {
  if (values && values->least == values->greatest) return absl::OkStatus();
  return Fail(reason, field,
              values ? absl::StrCat("is ", values->least, " on one rank and ", values->greatest, " on another")
                     : std::string("is said by no rank"));
}

}  // namespace

const char* ReportedStatusName(SampleStatus status) {
  return status == SampleStatus::kUnspecified ? "SOURCE_FAILED" : SampleStatusName(status);
}

SampleReport ReportOf(const SampleRecord& record, std::string sample, int64_t handle) {
  SampleReport report{.sample = std::move(sample),
                      .handle = handle,
                      .status = record.status,
                      .num_tokens = record.num_tokens,
                      .revision = record.revision};
  if (record.content_id != 0) report.content_id = record.content_id;
  for (const WeightSpan& span : record.weights) {
    report.oldest_weight_version = std::min(report.oldest_weight_version.value_or(span.version), span.version);
    report.newest_weight_version = std::max(report.newest_weight_version.value_or(span.version), span.version);
  }
  return report;
}

StepAgreement::StepAgreement(int32_t rank, absl::StatusOr<StepReport> step) : rank_(rank), invalid_(step.status()) {
  if (step.ok()) {
    step_ = *std::move(step);
    invalid_ = CheckStep(step_);
  }
  if (rank < 0) invalid_.Update(Wrong("rank", absl::StrCat(rank, " is below 0")));
  words_ = StepWords(rank_, step_, !invalid_.ok());
}

absl::Status StepAgreement::Push(absl::Span<const int64_t> reduced) {
  if (words_.empty()) return Fail(Reason::kField, "words", "there is no further round: it has ended");
  if (reduced.size() != words_.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("agreement.words: ", reduced.size(), " are not ", words_.size()),
                     {.reason = Reason::kLength, .field = "agreement.words"});
  }
  const std::vector<int64_t> own = std::exchange(words_, {});
  if (absl::Status status = CheckReduced(own, reduced); !status.ok()) return status;
  return samples_round_ ? PushSamples(reduced) : PushStep(reduced);
}

absl::Status StepAgreement::PushStep(absl::Span<const int64_t> reduced) {
  if (!invalid_.ok()) return invalid_;
  WordReader in(reduced);
  if (auto s = CheckEqual(in.Both(), Reason::kVersionMismatch, "version"); !s.ok()) return s;
  if (const auto rejected = in.Least()) {
    return Fail(Reason::kField, "ranks",
                absl::StrCat("rank ", *rejected, " cannot take part: its arguments are wrong"));
  }
  absl::Status status = CheckEqual(in.Both(), Reason::kField, "sample_count");
  status.Update(CheckEqual(in.Both(), Reason::kField, "policy"));
  status.Update(CheckEqual(in.Both(), Reason::kGeometryMismatch, "geometry_fingerprint"));
  if (!status.ok()) return status;
  const auto failed = RankOf(in.Least());
  if (!failed.ok()) return failed.status();
  decision_.source_failed_on = *failed;
  words_ = SampleWords(rank_, step_);
  samples_round_ = true;
  decided_ = words_.empty();
  return absl::OkStatus();
}

absl::Status StepAgreement::PushSamples(absl::Span<const int64_t> reduced) {
  auto decision = Decide(step_, reduced);
  if (!decision.ok()) return decision.status();
  decision->source_failed_on = decision_.source_failed_on;
  decision_ = *std::move(decision);
  decided_ = true;
  return absl::OkStatus();
}

absl::StatusOr<StepDecision> StepAgreement::decision() const {
  if (!decided_) return Fail(Reason::kField, "decision", "there is none: a round is left, or one has failed");
  return decision_;
}

absl::StatusOr<StepDecision> Agree(Collective& collective, absl::StatusOr<StepReport> step,
                                   Collective::Deadline deadline) {
  StepAgreement agreement(collective.rank(), std::move(step));
  while (!agreement.words().empty()) {
    std::vector<int64_t> words(agreement.words().begin(), agreement.words().end());
    absl::Status status = collective.AllReduceMax(absl::MakeSpan(words), deadline);
    if (status.ok()) status = agreement.Push(words);
    if (!status.ok()) return status;
  }
  return agreement.decision();
}

}  // namespace routing_replay::trainer
