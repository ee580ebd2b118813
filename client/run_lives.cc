#include "client/run_lives.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::client {

void RunLives::Open(size_t server, uint64_t life) {
  MutexLock lock(mutex_);
  lives_[server] = life;
}

absl::Status RunLives::Check(size_t server, absl::string_view run, uint64_t life) {
  MutexLock lock(mutex_);
  uint64_t& known = lives_[server];
  if (known == 0) known = life;
  if (life == 0 || life == known) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("run \"", run, "\" was made again since it was opened here, and what it held is gone: open it ",
                   "again to go on with what is there, and restore the rest from a checkpoint"));
}

uint64_t RunLives::whole() const {
  MutexLock lock(mutex_);
  XXH64_hash_t whole = 0;
  for (const uint64_t life : lives_) {
    if (life == 0) return 0;
    uint8_t bytes[sizeof(life)];
    for (size_t i = 0; i < sizeof(life); ++i) bytes[i] = static_cast<uint8_t>(life >> (8 * i));
    whole = XXH64(bytes, sizeof(bytes), whole);
  }
  return std::max<uint64_t>(whole, 1);
}

}  // namespace routing_replay::client
