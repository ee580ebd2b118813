#include "client/c_api/result.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

namespace {

constexpr size_t kAlignment = alignof(std::max_align_t);
constexpr size_t kFirstChunk = 512;
constexpr size_t kLargestChunk = size_t{1} << 20;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void* AllocateOrThrow(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

struct alignas(std::max_align_t) Arena::Chunk {
  Chunk* next;
};

struct Arena::Kept {
  Buffer buffer;
  Kept* next;
};

// Lies before the object.
struct alignas(std::max_align_t) Arena::Head {
  Chunk* chunks = nullptr;
  Kept* kept = nullptr;
  char* free = nullptr;  // So many bytes of the newest chunk are not used yet.
  size_t left = 0;
  size_t next_chunk = kFirstChunk;
};

Arena::Arena(size_t object) {
  const size_t size = sizeof(Head) + RoundUp(object);
  const size_t whole = std::max(size, kFirstChunk);
  head_ = new (AllocateOrThrow(whole)) Head;
  std::memset(static_cast<void*>(head_ + 1), 0, whole - sizeof(Head));
  head_->free = reinterpret_cast<char*>(head_) + size;
  head_->left = whole - size;
}

Arena::~Arena() {
  if (head_ != nullptr) Free(head_ + 1);
}

void* Arena::object() const { return head_ + 1; }

void* Arena::Allocate(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  bytes = RoundUp(bytes);
  if (bytes > head_->left) {
    head_->next_chunk = std::min(2 * head_->next_chunk, kLargestChunk);
    const size_t size = std::max(bytes, head_->next_chunk);
    auto* chunk = new (AllocateOrThrow(sizeof(Chunk) + size)) Chunk{head_->chunks};
    head_->chunks = chunk;
    head_->free = reinterpret_cast<char*>(chunk + 1);
    head_->left = size;
    std::memset(head_->free, 0, size);
  }
  head_->left -= bytes;
  return std::exchange(head_->free, head_->free + bytes);
}

void Arena::Keep(Buffer buffer) { head_->kept = new Kept{std::move(buffer), head_->kept}; }

void* Arena::Release() { return std::exchange(head_, nullptr) + 1; }

void Arena::Free(const void* object) {
  if (object == nullptr) return;
  Head* head = static_cast<Head*>(const_cast<void*>(object)) - 1;
  while (head->kept != nullptr) delete std::exchange(head->kept, head->kept->next);
  while (head->chunks != nullptr) std::free(std::exchange(head->chunks, head->chunks->next));
  std::free(head);
}

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
using routing_replay::c_api::Object;

int32_t rr_abi_version(void) { return RR_ABI_VERSION; }

const char* rr_version(void) { return ROUTING_REPLAY_VERSION; }

// Takes nothing but memory, and so may be called at any time, also by this library.
void rr_free(const void* result) { Arena::Free(result); }

void rr_object_free(void* object) {
  if (object != nullptr) static_cast<Object*>(object)->Free();
}
