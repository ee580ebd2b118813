// A rollout worker that tests kill: appends a sample in small steps, and resumes after the committed rows.
//
// usage: append_worker ENDPOINT RUN SAMPLE ROWS SEED
#include <cstdlib>
#include <iostream>

#include "tests/integration/chaos_routes.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const absl::Status status =
      routing_replay::testing::AppendSample(argv[1], argv[2], argv[3], std::atoll(argv[4]), std::atoll(argv[5]));
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
