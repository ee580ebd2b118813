// Content ids: opaque numbers that name one content of one sample.
#ifndef SERVER_STORE_SAMPLE_CONTENT_IDS_H_
#define SERVER_STORE_SAMPLE_CONTENT_IDS_H_

#include <atomic>
#include <cstdint>
#include <random>

namespace routing_replay::server {

// Never gives the same number twice in its life; a random start keeps the numbers of two processes apart. Thread-safe.
class ContentIds {
 public:
  ContentIds() {
    std::random_device random;
    next_ = static_cast<uint64_t>(random()) << 32 | random();
  }

  uint64_t Next() { return Mix(next_.fetch_add(1, std::memory_order_relaxed)); }

 private:
  // The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection, so that different inputs stay different.
  static uint64_t Mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  std::atomic<uint64_t> next_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_CONTENT_IDS_H_
