// MemorySample::Append: the steps of store.h.
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/memory/sample.h"
#include "server/store/provenance.h"

namespace routing_replay {

std::optional<absl::StatusOr<AppendAck>> MemorySample::Append(AppendCommand& command, ParentRows& parent) {
  Work work;
  std::optional<absl::StatusOr<AppendAck>> ack;
  {
    MutexLock lock(mutex_);
    if (life_ == Life::kRemoved) return std::nullopt;
    ack = AppendLocked(command, parent, work);
    if (ack->ok()) {
      Touch();
    } else {
      ack = Describe(ack->status());
    }
  }
  if (work.changed) Notify();
  return ack;
}

absl::StatusOr<AppendAck> MemorySample::AppendLocked(AppendCommand& command, ParentRows& parent, Work& work) {
  const AppendHeader& header = command.header;
  const absl::StatusOr<Step> step = CheckLife(header);
  if (!step.ok()) return step.status();
  if (*step != Step::kContinue) {
    absl::StatusOr<SampleContent> life = NewLife(*step, header, parent);
    if (!life.ok()) return life.status();
    work.life = *std::move(life);
  }
  const SampleContent& content = work.life ? *work.life : content_;
  const absl::StatusOr<AppendPlan> plan = PlanAppend(run_->info, content, header, command.blocks);
  if (!plan.ok()) return plan.status();
  if (work.life || plan->seals || !plan->added.empty()) {
    if (absl::Status status = Prepare(command, *plan, work); !status.ok()) return status;
    work.next = Next(header, *plan, content);
    const int64_t first_window = work.life ? 0 : plan->added.begin / run_->info.options.block_rows;
    if (absl::Status status = Write(first_window, work); !status.ok()) return status;
    Commit(work);
  } else if (header.group && *header.group != content_.group) {
    if (absl::Status status = WriteGroup(*header.group); !status.ok()) return status;
    content_.group = *header.group;
  }
  return AppendAck{.sample = id_,
                   .committed_rows = content_.rows(),
                   .revision = content_.revision,
                   .content_id = content_.content_id,
                   .sealed = content_.sealed(),
                   .trimmed_rows = plan->trimmed_rows,
                   .conflicting_rows = plan->conflicting_rows,
                   .late_rows = plan->late_rows,
                   .unrecorded_rows = TotalRows(plan->unrecorded),
                   .unverified_rows = plan->unverified_rows};
}

absl::StatusOr<MemorySample::Step> MemorySample::CheckLife(const AppendHeader& header) const {
  if (life_ == Life::kUnborn) {
    if (header.restart_nonce != 0 || header.revision == 0) return Step::kOpen;
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     absl::StrCat("the append is for revision ", header.revision,
                                  " of a sample that does not exist (any more); a new one starts at revision 0"),
                     {.reason = Reason::kOldRevision});
  }
  if (header.restart_nonce == 0 || header.restart_nonce != content_.restart_nonce) {
    if (absl::Status status = CheckRevision(header.revision); !status.ok()) return status;
    if (header.restart_nonce != 0) return Step::kRestart;
  }
  if (header.prefix && header.prefix != content_.prefix) {
    return MakeError(absl::StatusCode::kFailedPrecondition,
                     "append.prefix: the sample exists and was not opened with this prefix",
                     {.reason = Reason::kField, .field = "append.prefix"});
  }
  return Step::kContinue;
}

absl::StatusOr<SampleContent> MemorySample::NewLife(Step step, const AppendHeader& header, ParentRows& parent) const {
  SampleContent life{TokenChecks(run_->info.options.block_rows)};
  if (header.prefix) {
    if (!parent->ok()) return parent->status();
    life = *std::move(*parent);
  }
  const bool restart = step == Step::kRestart;
  life.revision = restart ? content_.revision + 1 : 0;
  life.restart_nonce = header.restart_nonce;
  life.prefix = header.prefix;
  life.group = restart ? content_.group : 0;
  life.engine = header.engine;
  return life;
}

absl::Status MemorySample::Prepare(AppendCommand& command, const AppendPlan& plan, Work& work) {
  const SampleContent& content = work.life ? *work.life : content_;
  PieceChange& change =
      work.change.emplace(run_->info, *run_->home, content.pieces, std::move(command.blocks), plan.added, plan.seals);
  int64_t bytes = change.cost() - change.reclaimable_bytes() - metadata_charge_.bytes() + content.metadata_bytes() +
                  content.growth_bytes(plan.added.end, plan.unrecorded.size());
  if (work.life) bytes -= content_.pieces.exclusive_bytes();
  work.pool = std::move(command.reservation);
  if (absl::Status status = Pay(bytes, work.pool); !status.ok()) return status;
  return change.Merge();
}

SampleContent MemorySample::Next(const AppendHeader& header, const AppendPlan& plan,
                                 const SampleContent& content) const {
  SampleContent next = content.WithoutPieces();
  for (RowRange range : plan.unrecorded) AppendMerged(next.unrecorded, range);
  AppendProvenance(next.provenance,
                   {plan.added, header.weight_version, header.weight_label, header.engine, /*appends=*/1});
  next.tokens.Extend(TokensOf(header), plan.token_check);
  if (plan.seals) next.num_tokens = header.seal_num_tokens;
  if (header.group) next.group = *header.group;
  if (&content != &content_ || !plan.added.empty()) next.content_id = run_->content_ids.Next();
  return next;
}

absl::Status MemorySample::WriteGroup(int64_t group) {
  if (run_->journal == nullptr) return absl::OkStatus();
  SampleContent next = content_.WithoutPieces();
  next.group = group;
  const int64_t block_rows = run_->info.options.block_rows;
  return WriteContent(next, (next.rows() + block_rows - 1) / block_rows, {});
}

}  // namespace routing_replay
