#include "client/c_api/result.h"

#include <cstring>
#include <memory_resource>
#include <string>
#include <vector>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

// What is stored in front of a result.
struct alignas(std::max_align_t) ResultMemory::Head {
  std::pmr::monotonic_buffer_resource memory;
  std::vector<Buffer> kept;
};

ResultMemory::ResultMemory(size_t size) : head_(new (::operator new(sizeof(Head) + size)) Head) {
  std::memset(result(), 0, size);
}

ResultMemory::~ResultMemory() {
  if (head_ != nullptr) Free(result());
}

void* ResultMemory::result() const { return head_ + 1; }

void* ResultMemory::Allocate(size_t bytes) { return std::memset(head_->memory.allocate(bytes), 0, bytes); }

void ResultMemory::Keep(Buffer buffer) { head_->kept.push_back(std::move(buffer)); }

void* ResultMemory::Release() { return std::exchange(head_, nullptr) + 1; }

void ResultMemory::Free(const void* result) {
  if (result == nullptr) return;
  Head* head = static_cast<Head*>(const_cast<void*>(result)) - 1;
  head->~Head();
  ::operator delete(head);
}

namespace {

void FillFailures(const AppendFailures& failures, ResultMemory& memory, rr_error& error) {
  const rr_texts samples = memory.Texts(failures.failed_samples);
  const auto errors = memory.Array<rr_error>(failures.failures.size());
  const auto pointers = memory.Array<const rr_error*>(failures.failures.size());
  for (size_t i = 0; i < failures.failures.size(); ++i) {
    const AppendOutcome& outcome = failures.failures[i];
    FillError(WithSample(outcome.status, outcome.sample), memory, errors[i]);
    pointers[i] = &errors[i];
  }
  error.failed_samples = samples.data;
  error.failed_count = samples.count;
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
  error.committed_rows = Optional(detail->committed_rows);
  error.revision = Optional(detail->revision);
}

rr_error* NewError(const CallEnd& end) noexcept {
  if (end.status.ok()) return nullptr;
  Result<rr_error> error;
  FillError(end.status, error, *error);
  FillFailures(end.failures, error, *error);
  return error.Release();
}

}  // namespace routing_replay::c_api

using routing_replay::c_api::Object;
using routing_replay::c_api::ResultMemory;

int32_t rr_abi_version(void) { return RR_ABI_VERSION; }

const char* rr_version(void) { return ROUTING_REPLAY_VERSION; }

// Does not pass the gate, because it only frees memory and may be called at any time.
void rr_free(const void* result) { ResultMemory::Free(result); }

void rr_object_free(void* object) {
  if (object != nullptr) static_cast<Object*>(object)->Free();
}
