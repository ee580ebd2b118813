// SHA-256 with OpenSSL.
#ifndef TESTS_BENCH_HANDOFF_DIGEST_H_
#define TESTS_BENCH_HANDOFF_DIGEST_H_

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"

namespace routing_replay::bench {

// The digest of all bytes added, in order.
class Sha256 {
 public:
  Sha256();
  void Add(absl::Span<const uint8_t> bytes);
  // Returns the digest in hexadecimal. Call it once, after the last Add.
  std::string Finish();

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_DIGEST_H_
