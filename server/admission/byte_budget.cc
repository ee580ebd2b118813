#include "server/admission/byte_budget.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

// How long a rejected caller should wait. Memory becomes free when a training step ends or a trainer releases samples,
// usually after seconds, so ten attempts a second are enough.
constexpr int32_t kRetryFullBudgetMs = 100;

}  // namespace

ByteReservation& ByteReservation::operator=(ByteReservation&& other) noexcept {
  if (this != &other) {
    Release();
    budget_ = std::exchange(other.budget_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

ByteReservation ByteReservation::Split(int64_t bytes) {
  bytes_ -= bytes;
  return ByteReservation(budget_, bytes);
}

void ByteReservation::Merge(ByteReservation other) {
  if (budget_ == nullptr) budget_ = other.budget_;
  bytes_ += std::exchange(other.bytes_, 0);
}

void ByteReservation::Release() {
  if (bytes_ != 0) budget_->Return(bytes_);
  bytes_ = 0;
}

absl::StatusOr<ByteReservation> ByteBudget::Reserve(int64_t bytes) {
  int64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ - used) {
      ErrorDetail detail{.reason = Reason::kOverBudget};
      detail.retry_after_ms = kRetryFullBudgetMs;
      return MakeError(absl::StatusCode::kResourceExhausted,
                       absl::StrCat("memory budget: ", bytes, " bytes requested, ", limit_ - used, " of ", limit_,
                                    " free; release samples or try again later"),
                       detail);
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return ByteReservation(this, bytes);
}

}  // namespace routing_replay::server
