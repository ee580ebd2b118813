// Restart nonces that are in an order: those of attempts, of which a later one replaces the rows of an earlier one.
#ifndef SERVER_STORE_SAMPLE_ATTEMPT_H_
#define SERVER_STORE_SAMPLE_ATTEMPT_H_

#include <cstdint>
#include <optional>

namespace routing_replay::server {

// The upper half of an attempt's nonce; the lower half is its number.
inline constexpr uint64_t kAttempt = uint64_t{0x41545054} << 32;
// The same of a life that a truncation has ended; kept, never sent. No append goes on with it by its nonce alone.
inline constexpr uint64_t kEndedAttempt = uint64_t{0x41545045} << 32;

// The attempt that a nonce is of, if it is of one.
constexpr std::optional<uint32_t> AttemptOf(uint64_t nonce) {
  const uint64_t mark = nonce & ~uint64_t{0xffffffff};
  if (mark != kAttempt && mark != kEndedAttempt) return std::nullopt;
  return static_cast<uint32_t>(nonce);
}

// What a truncation leaves of a nonce.
constexpr uint64_t EndedNonce(uint64_t nonce) {
  const std::optional<uint32_t> attempt = AttemptOf(nonce);
  return attempt ? kEndedAttempt | *attempt : 0;
}

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_ATTEMPT_H_
