#include "client/trajectory/turn_plan.h"

#include <algorithm>
#include <utility>

#include "client/trajectory/trajectory.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// The rows of a turn, opened once and decoded piece by piece.
class OpenedRows {
 public:
  static absl::StatusOr<OpenedRows> Open(const TurnRows& rows, const BlockOptions& blocks) {
    RR_ASSIGN_OR_RETURN(auto view, OpenTensor(rows.tensor, rows.payload, blocks.max_payload_bytes));
    if (rows.take) {
      RR_RETURN_IF_ERROR(TakeSlots(*rows.take, view));
    }
    OpenedRows opened;
    opened.tensor_ = {.dtype = view.dtype,
                      .shape = {view.rows, view.layers, view.top_k},
                      .layer_basis = rows.tensor.layer_basis,
                      .layer_ids = rows.tensor.layer_ids};
    opened.first_slot_ = rows.row_start + rows.missing_rows;
    opened.rows_ = {rows.row_start, opened.first_slot_ + view.rows};
    opened.view_ = std::move(view);
    return opened;
  }

  RowRange rows() const { return rows_; }
  absl::StatusOr<DecodedRows> Decode(RowRange rows, absl::Span<const WeightSpan> weights, const Geometry& geometry,
                                     const BlockOptions& blocks) const {
    RR_ASSIGN_OR_RETURN(auto cuts, WeightCuts(weights));
    DecodeOptions options{.row_start = rows.begin,
                          .block_rows = blocks.block_rows,
                          .cuts = std::move(cuts),
                          .codec = blocks.codec,
                          .max_payload_bytes = blocks.max_payload_bytes};
    const RowRange missing{rows.begin, std::clamp(first_slot_, rows.begin, rows.end)};
    AppendMerged(options.unrecorded, missing);
    options.take = RowRange::OfSize(missing.end - first_slot_, rows.end - missing.end);
    if (options.take->empty()) options.take = RowRange{};
    return DecodeTensor(geometry, tensor_, view_.elements, options);
  }

 private:
  TensorView view_;
  TensorDescription tensor_;
  RowRange rows_;
  int64_t first_slot_ = 0;  // Absolute row of the tensor's first slot.
};

// One append to make.
struct Part {
  RowRange rows;
  bool recorded = false;
};

std::vector<Part> PartsOf(const TurnDecision& decision) {
  std::vector<Part> parts;
  if (!decision.gap.empty()) parts.push_back({decision.gap});
  if (!decision.fresh.empty()) parts.push_back({decision.fresh, true});
  // A turn without new rows may still open or seal the sample. An append without rows does that.
  const bool bare = parts.empty() && (decision.prefix || decision.seal_num_tokens);
  if (!decision.tail.empty() || bare) parts.push_back({decision.tail});
  return parts;
}

std::vector<uint32_t> History(const Turn& turn, const Trajectory& trajectory) {
  const absl::Span<const uint32_t> told = trajectory.tokens();
  std::vector<uint32_t> history(told.begin(), told.begin() + (turn.tokens ? turn.tokens_start : told.size()));
  if (turn.tokens) history.insert(history.end(), turn.tokens->begin(), turn.tokens->end());
  return history;
}

class Planner {
 public:
  Planner(const Turn& turn, const std::optional<OpenedRows>& rows, const AppendOptions& common,
          const Geometry& geometry, const BlockOptions& blocks, Trajectory& trajectory)
      : turn_(turn), rows_(rows), common_(common), geometry_(geometry), blocks_(blocks), trajectory_(trajectory) {}

  absl::StatusOr<TurnPlan> Plan() {
    RR_ASSIGN_OR_RETURN(auto decision, trajectory_.Decide(turn_));
    TurnPlan plan{.decision = std::move(decision)};
    if (plan.decision.step == TurnDecision::Step::kAsk) return plan;
    const bool truncate = plan.decision.step == TurnDecision::Step::kTruncate;
    absl::Status status = truncate ? absl::OkStatus() : Compare(plan.decision);
    if (status.ok()) status = AddAppends(plan);
    if (!status.ok()) return status;
    if (truncate) {
      plan.appends.clear();
      return plan;
    }
    trajectory_.Commit(turn_, plan.decision, marks_);
    return plan;
  }

 private:
  absl::Status Compare(TurnDecision& decision) const {
    if (decision.compare.empty()) return absl::OkStatus();
    RR_ASSIGN_OR_RETURN(const auto decoded, rows_->Decode(decision.compare, {}, geometry_, blocks_));
    return trajectory_.Refine(turn_, MarkRows(geometry_, decoded), decision);
  }

  absl::Status AddAppends(TurnPlan& plan) {
    const TurnDecision& decision = plan.decision;
    const std::vector<Part> parts = PartsOf(decision);
    const std::vector<uint32_t> history = parts.empty() ? std::vector<uint32_t>() : History(turn_, trajectory_);
    for (const Part& part : parts) {
      AppendOptions options{.sample = trajectory_.sample(),
                            .producer = common_.producer,
                            .row_start = part.rows.begin,
                            .revision = trajectory_.revision(),
                            .group = common_.group,
                            .token_ids = history,
                            .engine = common_.engine};
      if (decision.prefix && &part == &parts.front()) {
        options.prefix_sample = decision.prefix->sample;
        options.prefix_rows = decision.prefix->rows;
        options.prefix_revision = decision.prefix->revision;
      }
      if (&part == &parts.back()) options.seal_num_tokens = decision.seal_num_tokens;
      RR_ASSIGN_OR_RETURN(auto append,
                          part.recorded ? PlanFresh(options, part.rows) : PlanUnrecorded(options, part.rows.size()));
      plan.appends.push_back(std::move(append));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AppendPlan> PlanFresh(AppendOptions options, RowRange rows) {
    options.weight_version = turn_.weight_version;
    options.weight_label = turn_.weight_label;
    options.weights = ClipWeights(turn_.weights, rows);
    RR_ASSIGN_OR_RETURN(auto decoded, rows_->Decode(rows, turn_.weights, geometry_, blocks_));
    marks_ = MarkRows(geometry_, decoded);
    return PlanBlocks(options, std::move(decoded), blocks_.block_rows, blocks_.piece_bytes());
  }

  const Turn& turn_;
  const std::optional<OpenedRows>& rows_;
  const AppendOptions& common_;
  const Geometry& geometry_;
  const BlockOptions& blocks_;
  Trajectory& trajectory_;
  std::vector<RowMark> marks_;  // One for each row of decision.fresh.
};

}  // namespace

absl::StatusOr<TurnPlan> PlanTurn(Turn turn, const TurnRows* rows, const AppendOptions& common,
                                  const Geometry& geometry, const BlockOptions& blocks, Trajectory& trajectory) {
  std::optional<OpenedRows> opened;
  turn.rows.reset();
  if (rows != nullptr) {
    auto open = OpenedRows::Open(*rows, blocks);
    if (!open.ok()) return WithSample(open.status(), trajectory.sample());
    opened = *std::move(open);
    turn.rows = opened->rows();
  }
  if (absl::Status status = CheckWeightRows(turn.weights, turn.rows.value_or(RowRange{})); !status.ok()) {
    return WithSample(status, trajectory.sample());
  }
  auto plan = Planner(turn, opened, common, geometry, blocks, trajectory).Plan();
  if (!plan.ok()) return WithSample(plan.status(), trajectory.sample());
  return plan;
}

}  // namespace routing_replay::client
