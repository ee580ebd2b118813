#include "tests/fuzz/smoke.h"

// Returns random steps of the other end of the ring. It often writes small positions, which are close to valid ones.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  std::vector<uint8_t> seed;
  for (int steps = static_cast<int>(random() % 40); steps > 0; --steps) {
    const uint64_t position = random() >> (random() % 64);
    seed.push_back(static_cast<uint8_t>(random()));
    seed.push_back(static_cast<uint8_t>(random() % 100));
    for (int byte = 0; byte < 8; ++byte) seed.push_back(static_cast<uint8_t>(position >> (8 * byte)));
  }
  return seed;
}
