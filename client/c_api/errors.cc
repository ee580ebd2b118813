#include "client/c_api/errors.h"

#include <vector>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

namespace {

void FillFailures(const AppendFailures& failures, ResultMemory& memory, rr_error& error) {
  const auto samples = memory.Array<rr_text>(failures.failed_samples.size());
  size_t at = 0;
  for (const std::string& sample : failures.failed_samples) samples[at++] = memory.Text(sample);
  const auto errors = memory.Array<rr_error>(failures.failures.size());
  const auto pointers = memory.Array<const rr_error*>(failures.failures.size());
  for (size_t i = 0; i < failures.failures.size(); ++i) {
    const AppendOutcome& outcome = failures.failures[i];
    FillError(WithSample(outcome.status, outcome.sample), memory, errors[i]);
    pointers[i] = &errors[i];
  }
  error.failed_samples = samples.data();
  error.failed_count = samples.size();
  error.failures = pointers.data();
  error.failures_count = pointers.size();
}

}  // namespace

void FillError(const absl::Status& status, ResultMemory& memory, rr_error& error) {
  error.code = static_cast<int32_t>(status.code());
  error.code_name = memory.Text(absl::StatusCodeToString(status.code()));
  error.message = memory.Text(status.message());
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (!detail) return;
  if (detail->reason != Reason::kUnspecified) error.reason = memory.Text(ReasonName(detail->reason));
  error.field = memory.Text(detail->field);
  error.sample = memory.Text(detail->sample);
  error.row = Optional(detail->row);
  error.layer = Optional(detail->layer);
  error.first_differing_block = Optional(detail->first_differing_block);
  error.retry_after_ms = Optional(detail->retry_after_ms);
  error.has_committed_rows = detail->committed_rows.has_value() ? 1 : 0;
  error.committed_rows = detail->committed_rows.value_or(0);
  error.has_revision = detail->revision.has_value() ? 1 : 0;
  error.revision = detail->revision.value_or(0);
  error.missing_rows = memory.Ranges(detail->missing_rows);
}

rr_error* NewError(const CallEnd& end) noexcept {
  if (end.status.ok()) return nullptr;
  Result<rr_error> error;
  FillError(end.status, error, *error);
  FillFailures(end.failures, error, *error);
  return error.Release();
}

}  // namespace routing_replay::c_api

using routing_replay::c_api::Arena;

int32_t rr_abi_version(void) { return RR_ABI_VERSION; }

const char* rr_version(void) { return ROUTING_REPLAY_VERSION; }

// These two take nothing but memory, and so may be called at any time, also by this library.
void rr_error_free(const rr_error* error) { Arena::Free(error); }

void rr_free(const void* result) { Arena::Free(result); }
