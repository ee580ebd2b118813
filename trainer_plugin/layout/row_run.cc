#include "trainer_plugin/layout/row_run.h"

#include <algorithm>

namespace routing_replay::trainer {
namespace {

// Entries of `run` with a local row below `bound`.
int64_t EntriesBelow(const RowRun& run, int64_t bound) {
  if (bound <= run.local_row) return 0;
  return std::min(run.count, (bound - run.local_row + run.stride - 1) / run.stride);
}

}  // namespace

RowRun SubRun(const RowRun& run, int64_t begin, int64_t end) {
  RowRun part = run;
  part.local_row += begin * run.stride;
  part.row += begin;
  part.count = end - begin;
  return part;
}

RowRun ClipToWindow(const RowRun& run, RowRange window) {
  RowRun part = SubRun(run, EntriesBelow(run, window.begin), EntriesBelow(run, window.end));
  part.local_row -= window.begin;
  return part;
}

}  // namespace routing_replay::trainer
