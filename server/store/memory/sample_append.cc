// MemorySample::Append: the steps of store.h.
#include <utility>

#include "server/store/memory/sample.h"

namespace routing_replay::server {

std::optional<absl::StatusOr<AppendAck>> MemorySample::Append(AppendCommand& command, ParentRows& parent) {
  Work work;
  std::optional<absl::StatusOr<AppendAck>> ack;
  {
    MutexLock lock(mutex());
    if (life_ == Life::kRemoved) return std::nullopt;
    Wake();
    ack = AppendLocked(command, parent, work);
    if (ack->ok()) {
      Touch();
    } else {
      ack = Describe(ack->status());
    }
    Rest();
  }
  if (work.changed) Notify();
  return ack;
}

absl::StatusOr<AppendAck> MemorySample::AppendLocked(AppendCommand& command, ParentRows& parent, Work& work) {
  const AppendHeader& header = command.header;
  const absl::StatusOr<LifeStep> step = CheckLife(living(), header);
  if (!step.ok()) return step.status();
  if (*step != LifeStep::kContinue) {
    absl::StatusOr<SampleContent> life = NewLife(*step, living(), header, run_->info.options.block_rows, parent);
    if (!life.ok()) return life.status();
    work.life = *std::move(life);
  }
  const SampleContent& content = work.life ? *work.life : *content_;
  const absl::StatusOr<AppendPlan> plan = PlanAppend(run_->info, content, header, command.blocks);
  if (!plan.ok()) return plan.status();
  if (work.life || !KeepsContent(*plan)) {
    if (absl::Status status = Prepare(command, *plan, work); !status.ok()) return status;
    work.next = NextContent(content, work.life.has_value(), header, *plan, run_->content_ids);
    const int64_t first_window = work.life ? 0 : plan->added.begin / run_->info.options.block_rows;
    if (absl::Status status = Write(first_window, work); !status.ok()) return status;
    Commit(work);
  } else if (header.group && *header.group != content_->group) {
    SampleContent next = content_->WithoutPieces();
    next.group = *header.group;
    if (absl::Status status = WriteHead(next); !status.ok()) return status;
    content_->group = *header.group;
  }
  return AckOf(id(), *content_, *plan);
}

absl::Status MemorySample::Prepare(AppendCommand& command, const AppendPlan& plan, Work& work) {
  const SampleContent& content = work.life ? *work.life : *content_;
  PieceChange& change =
      work.change.emplace(run_->info, *run_->home, content.pieces, std::move(command.blocks), plan.added, plan.seals);
  int64_t bytes = change.cost() - change.reclaimable_bytes() - metadata_bytes_ + content.metadata_bytes() +
                  content.growth_bytes(plan.added.end, plan.unrecorded.size());
  if (work.life) bytes -= content_->pieces.exclusive_bytes();
  work.pool = std::move(command.reservation);
  if (absl::Status status = Pay(bytes, work.pool); !status.ok()) return status;
  return change.Merge();
}

absl::Status MemorySample::WriteHead(const SampleContent& next) {
  if (run_->journal == nullptr) return absl::OkStatus();
  return WriteContent(next, WindowCount(next.rows(), run_->info.options.block_rows), {}, {});
}

}  // namespace routing_replay::server
