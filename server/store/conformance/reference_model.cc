#include "server/store/conformance/reference_model.h"

#include <algorithm>

#include "routing_replay/wire/error_detail.h"
#include "server/store/sample_rules.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExists = absl::StatusCode::kAlreadyExists;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

bool Ok(const ModelAnswer& answer) { return answer.code == absl::StatusCode::kOk; }

int64_t Committed(const ModelSample& sample) { return static_cast<int64_t>(sample.rows.size()); }

Tokens TokensBefore(const Trajectory& from, int64_t row) {
  Tokens tokens;
  for (int64_t i = 0; i < row; ++i) tokens.push_back(from.TokenAt(i));
  return tokens;
}

void Shorten(ModelSample& sample, int64_t rows, int32_t block_rows) {
  sample.rows.resize(rows);
  sample.origins.resize(rows);
  sample.tokens_seen.resize(rows);
  sample.history.erase(sample.history.upper_bound(rows), sample.history.end());
  if (sample.told_by_seal && *sample.told_by_seal % block_rows == 0) sample.history.erase(*sample.told_by_seal);
  sample.told_by_seal.reset();
  sample.num_tokens.reset();
}

}  // namespace

const ModelSample* ReferenceModel::Find(const std::string& sample) const {
  const auto it = samples_.find(sample);
  return it == samples_.end() ? nullptr : &it->second;
}

std::optional<RowIds> ReferenceModel::Shown(const AppendSpec& spec, int64_t row) const {
  for (RowRange hole : spec.unrecorded) {
    if (hole.contains(row)) return std::nullopt;
  }
  return spec.from.RowAt(geometry_, row);
}

bool ReferenceModel::IsCheckRow(int64_t row, const ModelSample& sample) const {
  const auto last = std::find(sample.tokens_seen.rbegin(), sample.tokens_seen.rend(), true);
  return row % run_.options.block_rows == 0 || row == Committed(sample) || row == sample.tokens_seen.rend() - last;
}

// Drops the checks that a store does not keep: those that are neither at a window's end, nor at the committed end, nor
// at the end of the last rows whose tokens are known.
void ReferenceModel::Forget(ModelSample& sample) const {
  std::erase_if(sample.history, [&](const auto& entry) { return !IsCheckRow(entry.first, sample); });
}

ModelAnswer ReferenceModel::Append(const AppendSpec& spec) {
  ModelSample sample;
  const ModelSample* present = Find(spec.sample);
  bool changed = false;
  const std::optional<uint32_t> attempt = AttemptOf(spec.restart_nonce);
  const std::optional<uint32_t> at = present == nullptr ? std::nullopt : AttemptOf(present->nonce);
  const bool other_attempt = attempt && at && *attempt != *at;
  if (other_attempt && *attempt < *at) return {kPrecondition, Reason::kOldRevision};
  const bool same_life = present != nullptr && spec.restart_nonce != 0 && present->nonce == spec.restart_nonce;
  if (present == nullptr && spec.restart_nonce == 0 && spec.revision != 0) return {kPrecondition, Reason::kOldRevision};
  if (present != nullptr && !same_life && !other_attempt && spec.revision != present->revision) {
    return {kPrecondition, Reason::kOldRevision};
  }
  const bool same_attempt = attempt && at && !other_attempt;
  if (present != nullptr && (same_life || same_attempt || spec.restart_nonce == 0)) {
    if (spec.prefix && spec.prefix != present->prefix) return {kPrecondition, Reason::kField};
    sample = *present;
  } else {
    if (const ModelAnswer answer = Open(spec, sample); !Ok(answer)) return answer;
    if (present != nullptr) {
      sample.revision = present->revision + 1;
      sample.group = present->group;
    }
    changed = true;
  }
  std::optional<Tokens> chain;
  std::vector<bool> verified(spec.rows.end);
  ModelAnswer answer = CompareTokens(spec, sample, chain, verified);
  if (!Ok(answer)) return answer;
  answer = CompareRoutes(spec, sample, verified, answer);
  if (!Ok(answer)) return answer;

  const int64_t committed = Committed(sample);
  if (sample.num_tokens) {
    if (!spec.rows.empty() && spec.rows.end > committed) return {kPrecondition, Reason::kSealed};
    if (spec.seal_num_tokens && spec.seal_num_tokens != sample.num_tokens) return {kPrecondition, Reason::kSealed};
  }
  if (spec.rows.begin > committed) return {kPrecondition, Reason::kGap};
  if (spec.seal_num_tokens && *spec.seal_num_tokens - 1 != std::max(committed, spec.rows.end)) {
    return {kInvalid, Reason::kRowCount};
  }
  if (spec.rows.end > committed) {
    Extend(spec, sample, chain);
    changed = true;
    for (int64_t row = committed; row < spec.rows.end; ++row) answer.unrecorded += !sample.rows[row].has_value();
  }
  if (spec.seal_num_tokens && !sample.num_tokens && spec.token_check_start && spec.rows.begin == committed &&
      spec.rows.empty() && sample.history.try_emplace(committed, TokensBefore(spec.from, committed)).second) {
    sample.told_by_seal = committed;
  }
  if (spec.seal_num_tokens) sample.num_tokens = spec.seal_num_tokens;
  if (spec.group) sample.group = *spec.group;
  if (changed) sample.content = ++contents_;
  samples_[spec.sample] = sample;
  return answer;
}

ModelAnswer ReferenceModel::Open(const AppendSpec& spec, ModelSample& sample) const {
  if (spec.prefix) {
    const ModelSample* parent = Find(spec.prefix->sample);
    if (parent == nullptr) return {absl::StatusCode::kNotFound, Reason::kNoSample};
    if (parent->revision != spec.prefix->revision) return {kPrecondition, Reason::kOldRevision};
    if (Committed(*parent) < spec.prefix->rows) return {kPrecondition, Reason::kNotCommitted};
    sample = *parent;
    Shorten(sample, spec.prefix->rows, run_.options.block_rows);
    sample.revision = 0;
    sample.group = 0;
    Forget(sample);
  }
  sample.nonce = spec.restart_nonce;
  sample.prefix = spec.prefix;
  return {};
}

ModelAnswer ReferenceModel::CompareTokens(const AppendSpec& spec, const ModelSample& sample,
                                          std::optional<Tokens>& chain, std::vector<bool>& verified) const {
  const auto other_tokens = [&](int64_t rows) {
    return ModelAnswer{kExists, Reason::kOtherTokens, WindowOf(rows), rows};
  };
  const auto known = [&](int64_t row) -> std::optional<Tokens> {
    const auto it = sample.history.find(row);
    return it == sample.history.end() ? std::nullopt : std::optional(it->second);
  };
  const int64_t begin = spec.rows.begin;
  if (spec.token_check_start) chain = TokensBefore(spec.from, begin);
  if (chain && known(begin) && *chain != *known(begin)) return other_tokens(begin);
  if (!chain) chain = known(begin);
  int64_t spoken_for = begin;
  for (int64_t row = begin; row < std::min(spec.rows.end, Committed(sample)); ++row) {
    if (!spec.token_ids) chain.reset();
    if (chain) chain->push_back(spec.from.TokenAt(row));
    const std::optional<Tokens> stored = known(row + 1);
    if (!stored) continue;
    if (chain && *chain != *stored) return other_tokens(row + 1);
    if (chain) std::fill(verified.begin() + spoken_for, verified.begin() + row + 1, true);
    chain = stored;
    spoken_for = row + 1;
  }
  return {};
}

ModelAnswer ReferenceModel::CompareRoutes(const AppendSpec& spec, const ModelSample& sample,
                                          const std::vector<bool>& verified, ModelAnswer answer) const {
  std::optional<int64_t> first_conflict, first_suspect;
  for (int64_t row = spec.rows.begin; row < std::min(spec.rows.end, Committed(sample)); ++row) {
    const std::optional<RowIds> shown = Shown(spec, row);
    const bool differs = shown && sample.rows[row] && *shown != *sample.rows[row];
    ++answer.trimmed;
    answer.conflicting += differs;
    answer.late += shown && !sample.rows[row];
    answer.unverified += !verified[row];
    if (differs && !first_conflict) first_conflict = row;
    if (differs && !verified[row] && spec.token_ids && sample.tokens_seen[row] && !first_suspect) first_suspect = row;
  }
  if (first_suspect) {
    return {kExists, Reason::kOtherTokens, *first_suspect / run_.options.block_rows, *first_suspect};
  }
  if (first_conflict && run_.options.strict) return {kExists, Reason::kConflictingRows, std::nullopt, first_conflict};
  return answer;
}

void ReferenceModel::Extend(const AppendSpec& spec, ModelSample& sample, std::optional<Tokens> chain) {
  const bool known = chain.has_value() && spec.token_ids;
  for (int64_t row = Committed(sample); row < spec.rows.end; ++row) {
    sample.rows.push_back(Shown(spec, row));
    sample.origins.push_back({spec.weight_version, spec.weight_label});
    sample.tokens_seen.push_back(known);
    if (!known) continue;
    chain->push_back(spec.from.TokenAt(row));
    sample.history[row + 1] = *chain;
  }
  Forget(sample);
}

ModelAnswer ReferenceModel::Seal(const std::string& name, int64_t num_tokens, int64_t revision) {
  const auto it = samples_.find(name);
  if (it == samples_.end()) return {absl::StatusCode::kNotFound, Reason::kNoSample};
  ModelSample& sample = it->second;
  if (sample.revision != revision) return {kPrecondition, Reason::kOldRevision};
  if (sample.num_tokens && *sample.num_tokens != num_tokens) return {kPrecondition, Reason::kSealed};
  if (num_tokens - 1 < Committed(sample)) return {kInvalid, Reason::kRowCount};
  if (num_tokens - 1 > Committed(sample)) return {kPrecondition, Reason::kNotCommitted};
  sample.num_tokens = num_tokens;
  return {};
}

ModelAnswer ReferenceModel::Truncate(const std::string& name, int64_t rows, std::optional<int64_t> revision) {
  const auto it = samples_.find(name);
  if (it == samples_.end()) return {absl::StatusCode::kNotFound, Reason::kNoSample};
  ModelSample& sample = it->second;
  if (revision && *revision != sample.revision) return {kPrecondition, Reason::kOldRevision};
  if (rows > Committed(sample)) return {absl::StatusCode::kOutOfRange, Reason::kNotCommitted};
  Shorten(sample, rows, run_.options.block_rows);
  Forget(sample);
  ++sample.revision;
  sample.nonce = EndedNonce(sample.nonce);
  sample.content = ++contents_;
  return {};
}

}  // namespace routing_replay::testing
