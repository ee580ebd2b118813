// The calls that rrctl bench makes.
#ifndef CLIENT_RRCTL_BENCH_LOAD_H_
#define CLIENT_RRCTL_BENCH_LOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/rrctl/bench/phase.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Random rows as an engine has them, which every sample shares. Immutable; thread-safe.
class BenchLoad {
 public:
  // Samples of `rows` rows of the run's geometry, which has one E and one K. Calls end at `deadline` or a moment later.
  BenchLoad(std::shared_ptr<Run> run, int64_t rows, Clock::Time deadline);

  // Appends sample `item` of `round`, sealed, and waits for the acknowledgement. One task per thread.
  PhaseTask MakeAppender(int round) const;
  // Reads it back. DATA_LOSS if it is not whole.
  PhaseTask MakeReader(int round) const;

  static std::string SampleName(int round, int64_t item);

 private:
  std::chrono::milliseconds TimeLeft() const;
  absl::Status ReadBack(const std::string& sample) const;

  const std::shared_ptr<Run> run_;
  const int64_t rows_;
  const Clock::Time deadline_;
  std::vector<uint16_t> ids_;  // [rows][layers][K]
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_BENCH_LOAD_H_
