#include <zstd.h>

#include "tests/fuzz/smoke.h"

// Returns twelve bytes that choose the description and the options, then rows of small one-byte ids. Many such inputs
// are valid.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  const uint8_t rows = static_cast<uint8_t>(random() % 100);
  std::vector<uint8_t> seed = {0, 0, 0, 0, 1, 1, rows, 2, 4, 0, static_cast<uint8_t>(random()), 0};
  for (int i = 0; i < rows * 2; ++i) {
    for (int k = 0; k < 4; ++k) seed.push_back(static_cast<uint8_t>(k * 16 + random() % 16));
  }
  if (random() % 4 != 0) return seed;
  // One in four inputs has its payload compressed with zstd.
  std::vector<uint8_t> frame(ZSTD_compressBound(seed.size()));
  const size_t header = 12;
  frame.resize(ZSTD_compress(frame.data(), frame.size(), seed.data() + header, seed.size() - header, 1));
  seed[2] = 1;
  seed[3] = rows;
  seed.resize(header);
  seed.insert(seed.end(), frame.begin(), frame.end());
  return seed;
}
