// What a fuzz target needs to run without a fuzzing engine.
#ifndef TESTS_FUZZ_SMOKE_H_
#define TESTS_FUZZ_SMOKE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Defined by each target. Returns a valid or nearly valid input, because a mutated valid input reaches deeper than
// random bytes.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random);

// Ends the process with the message `what` unless `fact` holds.
inline void Require(bool fact, const char* what) {
  if (fact) return;
  std::fprintf(stderr, "fuzz target: %s\n", what);
  std::abort();
}

#endif  // TESTS_FUZZ_SMOKE_H_
