#include "client/rrctl/progress.h"

#include <unistd.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/rrctl/terminal.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::seconds kSettled(1);

}  // namespace

std::string ProgressMeter::Describe(const Progress& progress) {
  if (!started_ || progress.phase != first_.phase) {
    first_ = progress;
    start_ = clock_.Now();
    started_ = true;
  }
  std::string text = absl::StrCat(progress.phase, progress.phase.empty() ? "" : ": ", progress.done, " of ",
                                  progress.total, " ", progress.unit, ", ", HumanBytes(progress.bytes));
  const auto elapsed = clock_.Now() - start_;
  const int64_t done = progress.done - first_.done;
  if (elapsed < kSettled || done <= 0) return text;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double rate = static_cast<double>(progress.bytes - first_.bytes) / seconds;
  absl::StrAppend(&text, ", ", HumanBytes(static_cast<int64_t>(rate)), "/s");
  if (progress.done >= progress.total) return text;
  const double left = seconds * static_cast<double>(progress.total - progress.done) / static_cast<double>(done);
  absl::StrAppend(&text, ", ", HumanDuration(std::chrono::milliseconds(static_cast<int64_t>(left * 1000))), " left");
  return text;
}

ProgressLine::ProgressLine() : terminal_(IsTerminal(STDERR_FILENO)) {}

void ProgressLine::Draw(const std::string& text) {
  if (!terminal_ || text == shown_) return;
  std::cerr << "\r\033[K" << CutToWidth(text, SizeOf(STDERR_FILENO).columns - 1) << std::flush;
  shown_ = text;
}

}  // namespace routing_replay::client
