// What a fuzz target needs to run where no fuzzing engine is at hand.
#ifndef TESTS_FUZZ_SMOKE_H_
#define TESTS_FUZZ_SMOKE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// An input that is right, or nearly: what is changed a little goes further than random bytes. Given by the target.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random);

// Ends the process, naming `what` is wrong, unless `fact` holds.
inline void Require(bool fact, const char* what) {
  if (fact) return;
  std::fprintf(stderr, "fuzz target: %s\n", what);
  std::abort();
}

#endif  // TESTS_FUZZ_SMOKE_H_
