#include "routing_replay/trainer/agreement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

// Version of the protocol; raised when words change their meaning. The number of words in the first round never
// changes.
constexpr int64_t kVersion = 1;

// The smallest possible word; a rank without a value sends it.
constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();

struct Extremes {
  int64_t least = 0;
  int64_t greatest = 0;
};

// Builds the words of a round. Each call appends the words for one value of this rank.
class WordWriter {
 public:
  // The maximum of these words over the ranks is the greatest of their values.
  void Greatest(std::optional<int64_t> value) { words_.push_back(value.value_or(kNothing)); }
  // The maximum of these words is ~ of the smallest value. ~ reverses the order and, unlike a minus sign, never
  // overflows.
  void Least(std::optional<int64_t> value) { words_.push_back(value ? ~*value : kNothing); }
  void Both(std::optional<int64_t> value) {
    Greatest(value);
    Least(value);
  }
  std::vector<int64_t> Take() { return std::move(words_); }

 private:
  std::vector<int64_t> words_;
};

// Reads the values from the maxima over all ranks, in the order of WordWriter's calls. Not set: no rank had a value.
class WordReader {
 public:
  explicit WordReader(absl::Span<const int64_t> words) : words_(words) {}

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
  // A value sends itself and ~ itself, at most one of which is kNothing; a rank without a value sends kNothing twice.
  // So both words are kNothing only if no rank had a value.
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

absl::Status Fail(Reason reason, absl::string_view field, absl::string_view what, absl::string_view sample = "") {
  const std::string name = absl::StrCat("agreement.", field);
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(name, ": ", what),
                   {.reason = reason, .field = name, .sample = std::string(sample)});
}

// Badness is a number that orders statuses: kOk has the lowest, kUnspecified (the source failed) the highest. The order
// between them does not matter, as long as all ranks use the same one.
constexpr int64_t kSourceFailed = 255;

int64_t Badness(SampleStatus status) {
  return status == SampleStatus::kUnspecified ? kSourceFailed : static_cast<int64_t>(status);
}

SampleStatus StatusOf(int64_t badness) {
  return badness == kSourceFailed ? SampleStatus::kUnspecified : static_cast<SampleStatus>(badness);
}

std::optional<int64_t> OnlyIf(bool condition, int64_t value) { return condition ? std::optional(value) : std::nullopt; }

std::vector<int64_t> StepWords(int32_t rank, const StepReport& step, bool rejected) {
  WordWriter out;
  out.Both(kVersion);
  out.Least(OnlyIf(rejected, rank));
  out.Both(static_cast<int64_t>(step.samples.size()));
  out.Both(static_cast<int64_t>(step.policy));
  out.Both(static_cast<int64_t>(step.geometry_fingerprint));
  return out.Take();
}

void WriteSample(int32_t rank, const SampleReport& report, bool source_failed, WordWriter& out) {
  const SampleStatus status = source_failed ? SampleStatus::kUnspecified : report.status;
  const bool there = status == SampleStatus::kOk;
  const SampleReport known = there ? report : SampleReport{};
  out.Both(report.sample.empty() ? BareHandle(report.handle) : SampleHandle(report.sample));
  out.Greatest(Badness(status));
  out.Least(OnlyIf(!there, rank));
  out.Both(known.num_tokens);
  out.Both(known.content_id);
  out.Least(known.oldest_weight_version);
  out.Greatest(known.newest_weight_version);
}

std::vector<int64_t> SampleWords(int32_t rank, const StepReport& step) {
  WordWriter out;
  for (const SampleReport& report : step.samples) WriteSample(rank, report, step.source_failed, out);
  return out.Take();
}

// The reports of all ranks about a sample, combined.
struct Combined {
  Extremes handle;
  SampleDecision decision;
  std::optional<Extremes> num_tokens, content_id;
};

Combined ReadSample(WordReader& in) {
  Combined said{.handle = in.Both().value_or(Extremes{})};
  said.decision.status = StatusOf(in.Greatest().value_or(kSourceFailed));
  said.decision.missing_on = in.Least();
  said.num_tokens = in.Both();
  said.content_id = in.Both();
  said.decision.oldest_weight_version = in.Least();
  said.decision.newest_weight_version = in.Greatest();
  if (said.num_tokens) said.decision.num_tokens = said.num_tokens->greatest;
  if (said.content_id) said.decision.content_id = static_cast<uint64_t>(said.content_id->greatest);
  return said;
}

// Checks a value of the step, or of one of its samples, that must be the same on all ranks that know it. Values are
// printed as unsigned: none is negative, and some are the bits of an unsigned number.
absl::Status CheckSame(std::optional<Extremes> values, Reason reason, absl::string_view field,
                       const SampleReport* report = nullptr) {
  if (!values || values->least == values->greatest) return absl::OkStatus();
  const std::string of =
      report == nullptr ? "" : absl::StrCat("of sample ", DescribeSample(report->sample, report->handle), " ");
  return Fail(reason, field,
              absl::StrCat(of, "is ", static_cast<uint64_t>(values->least), " on one rank and ",
                           static_cast<uint64_t>(values->greatest), " on another"),
              report == nullptr ? "" : report->sample);
}

absl::Status CheckSameContent(const Combined& said, const SampleReport& report) {
  absl::Status status = CheckSame(said.num_tokens, Reason::kRowCount, "num_tokens", &report);
  status.Update(CheckSame(said.content_id, Reason::kConflictingRows, "content_id", &report));
  return status;
}

absl::Status Missing(const SampleDecision& decision, const SampleReport& report, int64_t missing, size_t samples) {
  return Fail(
      MissingReason(decision.status), "samples",
      absl::StrCat("sample ", DescribeSample(report.sample, report.handle), " is ", ReportedStatusName(decision.status),
                   ", first on rank ", *decision.missing_on, "; ", missing, " of ", samples, " samples are missing"),
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
    const Extremes handle = said.emplace_back(ReadSample(in)).handle;
    if (handle.least == handle.greatest) continue;
    return Fail(Reason::kField, "samples",
                absl::StrCat("sample number ", i, " has handle ", handle.least, " on one rank and ", handle.greatest,
                             " on another"));
  }
  StepDecision decision;
  for (size_t i = 0; i < said.size(); ++i) {
    RR_RETURN_IF_ERROR(CheckSameContent(said[i], step.samples[i]));
    Count(said[i].decision, step.policy, decision);
  }
  if (step.policy != MissingPolicy::kStrict || decision.fallen_back == 0) return decision;
  const auto first = std::find_if(decision.samples.begin(), decision.samples.end(),
                                  [](const SampleDecision& sample) { return sample.missing_on.has_value(); });
  return Missing(*first, step.samples[first - decision.samples.begin()], decision.fallen_back, said.size());
}

}  // namespace

const char* ReportedStatusName(SampleStatus status) {
  return status == SampleStatus::kUnspecified ? "SOURCE_FAILED" : SampleStatusName(status);
}

StepAgreement::StepAgreement(int32_t rank, absl::StatusOr<StepReport> step) : rank_(rank), invalid_(step.status()) {
  if (step.ok()) step_ = *std::move(step);
  words_ = StepWords(rank_, step_, !invalid_.ok());
}

absl::Status StepAgreement::Push(absl::Span<const int64_t> reduced) {
  if (words_.empty()) return Fail(Reason::kField, "words", "the agreement has ended, so no more words are expected");
  if (reduced.size() != words_.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("agreement.words: ", reduced.size(), " words, expected ", words_.size()),
                     {.reason = Reason::kLength, .field = "agreement.words"});
  }
  words_.clear();
  return samples_round_ ? PushSamples(reduced) : PushStep(reduced);
}

absl::Status StepAgreement::PushStep(absl::Span<const int64_t> reduced) {
  if (!invalid_.ok()) return invalid_;
  WordReader in(reduced);
  RR_RETURN_IF_ERROR(CheckSame(in.Both(), Reason::kVersionMismatch, "version"));
  if (const auto rejected = in.Least()) {
    return Fail(Reason::kField, "ranks", absl::StrCat("rank ", *rejected, " cannot take part: it has no valid report"));
  }
  absl::Status status = CheckSame(in.Both(), Reason::kField, "sample_count");
  status.Update(CheckSame(in.Both(), Reason::kField, "policy"));
  status.Update(CheckSame(in.Both(), Reason::kGeometryMismatch, "geometry_fingerprint"));
  if (!status.ok()) return status;
  words_ = SampleWords(rank_, step_);
  samples_round_ = true;
  decided_ = words_.empty();
  return absl::OkStatus();
}

absl::Status StepAgreement::PushSamples(absl::Span<const int64_t> reduced) {
  RR_ASSIGN_OR_RETURN(decision_, Decide(step_, reduced));
  decided_ = true;
  return absl::OkStatus();
}

absl::StatusOr<StepDecision> StepAgreement::decision() const {
  if (!decided_)
    return Fail(Reason::kField, "decision", "not available: the agreement has not ended, or a round has failed");
  return decision_;
}

}  // namespace routing_replay::trainer
