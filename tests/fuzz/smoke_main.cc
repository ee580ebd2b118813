// Runs a fuzz target on seeded random inputs, where no fuzzing engine is at hand.
//
//   <target>_smoke [iterations]
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// Twelve bytes of choices, then `rows` rows of small ids as one byte each: a good part of these decode.
Bytes MakeSeed(std::mt19937_64& random) {
  const uint8_t rows = static_cast<uint8_t>(random() % 100);
  Bytes seed = {0, 0, 0, 0, 1, 1, rows, 2, 4, 0, static_cast<uint8_t>(random()), 0};
  for (int i = 0; i < rows * 2; ++i) {
    for (int k = 0; k < 4; ++k) seed.push_back(static_cast<uint8_t>(k * 16 + random() % 16));
  }
  if (random() % 4 != 0) return seed;
  // The same in a zstd frame.
  Bytes frame(ZSTD_compressBound(seed.size()));
  const size_t header = 12;
  frame.resize(ZSTD_compress(frame.data(), frame.size(), seed.data() + header, seed.size() - header, 1));
  seed[2] = 1;
  seed[3] = rows;
  seed.resize(header);
  seed.insert(seed.end(), frame.begin(), frame.end());
  return seed;
}

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
    // Exactly as large as the input, so that a read past its end is seen by ASan.
    input.shrink_to_fit();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%ld inputs\n", iterations);
  return 0;
}
