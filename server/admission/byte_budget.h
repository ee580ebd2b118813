// Limits memory; counts each byte exactly once. The bytes of a payload are reserved with the credit for it, before it
// arrives. Put, and small payloads without credit, reserve them after that. With credit:
//
//   credit granted ──Reserve──▶ ByteReservation ──(append arrives)──▶ split for the stored blocks ──▶ freed with them
#ifndef SERVER_ADMISSION_BYTE_BUDGET_H_
#define SERVER_ADMISSION_BYTE_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace routing_replay::server {

class ByteBudget;

// Bytes taken from a budget, given back on destruction. Move-only; not thread-safe itself (the budget is).
class ByteReservation {
 public:
  ByteReservation() = default;
  ByteReservation(ByteReservation&& other) noexcept { *this = std::move(other); }
  ByteReservation& operator=(ByteReservation&& other) noexcept;
  ~ByteReservation() { Release(); }

  int64_t bytes() const { return bytes_; }
  // Moves `bytes` (at most bytes()) into a separate reservation. Never fails: the bytes are taken already.
  ByteReservation Split(int64_t bytes);
  // Adds `other` (of the same budget, or empty) to this one.
  void Merge(ByteReservation other);
  // Gives everything back now.
  void Release();
  // Returns bytes() and empties this reservation without giving anything back: the bytes stay taken from the budget
  // until ByteBudget::Attach makes a reservation of them again.
  int64_t Detach() { return std::exchange(bytes_, 0); }

 private:
  friend class ByteBudget;
  ByteReservation(ByteBudget* budget, int64_t bytes) : budget_(budget), bytes_(bytes) {}

  ByteBudget* budget_ = nullptr;
  int64_t bytes_ = 0;
};

// Thread-safe. Must outlive its reservations.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // RESOURCE_EXHAUSTED (kOverBudget, retry_after_ms) if the limit would be exceeded; then nothing is taken.
  absl::StatusOr<ByteReservation> Reserve(int64_t bytes);

  // Undoes ByteReservation::Detach: returns a reservation of bytes that are taken from this budget already.
  ByteReservation Attach(int64_t bytes) { return ByteReservation(this, bytes); }

  int64_t limit() const { return limit_; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  friend class ByteReservation;
  void Return(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_BYTE_BUDGET_H_
