#include "server/store/memory/spiller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

// After a search that found nothing to spill, the next one waits this many times as long as the search took.
constexpr int kLookShare = 10;

}  // namespace

Spiller::Spiller(const SpillOptions& options, ByteBudget& memory, VisitSamples visit)
    : options_(options),
      memory_(memory),
      area_(std::make_shared<SpillArea>(options.disk, options.budget_bytes, options.segment_bytes)),
      visit_(std::move(visit)) {
  if (options_.background) thread_ = std::thread([this] { Run(); });
}

Spiller::~Spiller() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wanted_changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Spiller::Look() {
  if (!Above(options_.begin)) return;
  if (!options_.background) return SpillCold();
  if (wanted_.exchange(true)) return;
  MutexLock lock(mutex_);  // So the thread is not between its check of wanted_ and its wait.
  wanted_changed_.NotifyAll();
}

bool Spiller::MakeRoom(int64_t bytes) {
  if (bytes > memory_.limit()) return false;
  while (!Fits(bytes)) {
    MutexLock lock(spilling_);
    if (!Fits(bytes) && !SpillOne()) return Fits(bytes);
  }
  return true;
}

Store::Totals::Spill Spiller::GetTotals() const {
  const SpillCounts& counts = area_->counts;
  return {.budget_bytes = area_->space.limit(),
          .disk_bytes = area_->space.used(),
          .samples = counts.samples,
          .bytes = counts.bytes,
          .loads = counts.loads,
          .lost_blocks = counts.lost_blocks,
          .write_failures = counts.write_failures};
}

void Spiller::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stop_ && !wanted_) wanted_changed_.Wait(mutex_);
      if (stop_) return;
    }
    wanted_ = false;
    SpillCold();
  }
}

void Spiller::SpillCold() {
  while (Above(options_.end)) {
    {
      MutexLock lock(mutex_);
      if (stop_) return;
    }
    MutexLock lock(spilling_);
    if (!SpillOne()) return;
  }
}

bool Spiller::SpillOne() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_try_) return false;
  for (bool looked = false;;) {
    if (candidates_.empty()) {
      if (looked || now < next_look_) return false;
      FindCandidates();
      looked = true;
      if (candidates_.empty()) return false;
    }
    const Candidate candidate = std::move(candidates_.back());
    candidates_.pop_back();
    if (candidate.sample->last_used() > candidate.last_used) continue;
    const absl::StatusOr<int64_t> freed = candidate.sample->Spill();
    if (!freed.ok()) {
      Failed(freed.status());
      return false;
    }
    if (*freed == 0) continue;
    failing_ = false;
    ++area_->counts.samples;
    area_->counts.bytes += *freed;
    return true;
  }
}

void Spiller::FindCandidates() {
  const auto wanted = static_cast<int64_t>(static_cast<double>(memory_.limit()) * (options_.begin - options_.end)) +
                      std::max<int64_t>(memory_.used() - memory_.limit(), 0);
  const auto colder = [](const Candidate& a, const Candidate& b) { return a.last_used < b.last_used; };
  std::vector<Candidate> heap;  // The most recently used on top.
  int64_t bytes = 0;
  const auto start = std::chrono::steady_clock::now();
  visit_([&](std::shared_ptr<MemorySample> sample) {
    const Clock::Time last_used = sample->last_used();
    if (bytes >= wanted && !heap.empty() && last_used >= heap.front().last_used) return;
    const int64_t spillable = sample->spillable_bytes();
    if (spillable == 0) return;
    heap.push_back({last_used, spillable, std::move(sample)});
    std::push_heap(heap.begin(), heap.end(), colder);
    bytes += spillable;
    while (heap.size() > 1 && bytes - heap.front().bytes >= wanted) {
      bytes -= heap.front().bytes;
      std::pop_heap(heap.begin(), heap.end(), colder);
      heap.pop_back();
    }
  });
  std::sort(heap.begin(), heap.end(), [&](const Candidate& a, const Candidate& b) { return colder(b, a); });
  candidates_ = std::move(heap);
  if (!candidates_.empty() || !options_.background) return;
  const auto now = std::chrono::steady_clock::now();
  next_look_ = now + kLookShare * (now - start);
}

void Spiller::Failed(const absl::Status& status) {
  next_try_ = std::chrono::steady_clock::now() + options_.pause;
  if (std::exchange(failing_, true)) return;
  options_.warn(absl::StrCat("cannot spill samples, so they stay in memory: ", status.message()));
}

}  // namespace routing_replay::server
