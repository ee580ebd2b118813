// Budget bytes of committed data, counted for their run as long as they are held.
#ifndef SERVER_STORE_SAMPLE_STORED_CHARGE_H_
#define SERVER_STORE_SAMPLE_STORED_CHARGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "server/admission/byte_budget.h"

namespace routing_replay::server {

// Running totals of a run. Thread-safe; each one is right by itself.
struct RunUsage {
  // `of`: outlives it.
  explicit RunUsage(ByteBudget& of) : budget(of) {}

  ByteBudget& budget;  // What its bytes are charged to.
  std::atomic<int64_t> samples{0};
  std::atomic<int64_t> sealed_samples{0};
  std::atomic<int64_t> committed_rows{0};
  std::atomic<int64_t> stored_bytes{0};
};

// Move-only; not thread-safe itself.
class StoredCharge {
 public:
  StoredCharge() = default;
  StoredCharge(ByteReservation bytes, std::shared_ptr<RunUsage> usage)
      : bytes_(std::move(bytes)), usage_(std::move(usage)) {
    usage_->stored_bytes += bytes_.bytes();
  }
  StoredCharge(StoredCharge&&) = default;
  StoredCharge& operator=(StoredCharge&& other) noexcept {
    Take().Release();
    bytes_ = std::move(other.bytes_);
    usage_ = std::move(other.usage_);
    return *this;
  }
  ~StoredCharge() { Take(); }

  int64_t bytes() const { return bytes_.bytes(); }
  // The bytes, no longer counted as stored.
  ByteReservation Take() {
    if (usage_ != nullptr) usage_->stored_bytes -= bytes_.bytes();
    usage_.reset();
    return std::move(bytes_);
  }
  // Keeps `bytes` of them; the others are no longer counted as stored.
  ByteReservation ShrinkTo(int64_t bytes) {
    ByteReservation rest = bytes_.Split(bytes_.bytes() - bytes);
    usage_->stored_bytes -= rest.bytes();
    return rest;
  }

 private:
  ByteReservation bytes_;
  std::shared_ptr<RunUsage> usage_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_STORED_CHARGE_H_
