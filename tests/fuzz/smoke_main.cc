// Runs a fuzz target on seeded random inputs, for machines without a fuzzing engine.
//
//   <target>_smoke [iterations]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "tests/fuzz/smoke.h"

namespace {

using Bytes = std::vector<uint8_t>;

void Mutate(Bytes& input, std::mt19937_64& random) {
  if (input.empty()) return;
  const size_t place = random() % (random() % 2 == 0 ? std::min<size_t>(input.size(), 40) : input.size());
  switch (random() % 5) {
    case 0:
      input[place] ^= static_cast<uint8_t>(1 << random() % 8);
      break;
    case 1:
      input[place] = static_cast<uint8_t>(random());
      break;
    case 2:
      input.resize(place);
      break;
    case 3:
      input.insert(input.begin() + static_cast<std::ptrdiff_t>(place), static_cast<uint8_t>(random()));
      break;
    default:
      input.erase(input.begin() + static_cast<std::ptrdiff_t>(place));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const long iterations = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 100000;
  std::mt19937_64 random(1);
  for (long i = 0; i < iterations; ++i) {
    Bytes input = MakeSeed(random);
    for (uint64_t n = random() % 8; n > 0; --n) Mutate(input, random);
    // A copy of exactly the input's size, so that ASan detects a read past its end.
    input.shrink_to_fit();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld inputs\n", iterations);
  return 0;
}
