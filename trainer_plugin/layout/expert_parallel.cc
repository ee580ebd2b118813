#include "routing_replay/trainer/expert_parallel.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/filler.h"

namespace routing_replay::trainer {
namespace {

absl::Status InvalidId(const LayerRouting& layer, int64_t row, uint32_t id) {
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("ids: ", id, " in row ", row, " of layer ", layer.layer_id, " is not in [0, ",
                                layer.num_experts, ")"),
                   {.reason = Reason::kIdRange, .field = "ids", .row = row, .layer = layer.layer_id});
}

absl::Status CheckRows(const LayerRouting& layer, absl::Span<const uint8_t> ids, int64_t filler_rows) {
  const size_t row_bytes = static_cast<size_t>(layer.top_k) * layer.id_bytes();
  if (ids.size() % row_bytes != 0) {
    return Invalid(Reason::kLength, "ids", absl::StrCat(ids.size(), " bytes are not whole rows of ", row_bytes));
  }
  const int64_t rows = static_cast<int64_t>(ids.size() / row_bytes);
  if (filler_rows < 0 || filler_rows > kMaxLocalRows || rows > kMaxLocalRows) {
    return Invalid("filler_rows",
                   absl::StrCat(filler_rows, " beside ", rows, " replayed rows, not 0 … ", kMaxLocalRows));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExpertParallel> ExpertParallel::Create(int32_t num_experts, int32_t ep_size) {
  if (num_experts < 1) return Invalid("num_experts", absl::StrCat(num_experts, " is below 1"));
  if (ep_size < 1 || num_experts % ep_size != 0) {
    return Invalid("ep_size", absl::StrCat(ep_size, " ranks do not share ", num_experts, " experts evenly"));
  }
  return ExpertParallel(num_experts, ep_size);
}

std::optional<ExpertPlace> ExpertParallel::FindPlace(int32_t expert) const {
  if (expert < 0 || expert >= num_experts_) return std::nullopt;
  return ExpertPlace{.ep_rank = expert / experts_per_rank(), .index = expert % experts_per_rank()};
}

std::optional<int32_t> ExpertParallel::FindExpert(const ExpertPlace& place) const {
  if (place.ep_rank < 0 || place.ep_rank >= ep_size_ || place.index < 0 || place.index >= experts_per_rank()) {
    return std::nullopt;
  }
  return place.ep_rank * experts_per_rank() + place.index;
}

int64_t ExpertRankLoad::largest() const {
  int64_t most = 0;
  for (size_t r = 0; r < replayed.size(); ++r) most = std::max(most, replayed[r] + filler[r]);
  return most;
}

double ExpertRankLoad::imbalance() const {
  int64_t all = 0;
  for (size_t r = 0; r < replayed.size(); ++r) all += replayed[r] + filler[r];
  return all == 0 ? 1.0
                  : static_cast<double>(largest()) * static_cast<double>(replayed.size()) / static_cast<double>(all);
}

absl::StatusOr<ExpertRankLoad> LoadOfRows(const Geometry& geometry, int32_t ordinal, int32_t ep_size,
                                          absl::Span<const uint8_t> ids, int64_t filler_rows) {
  if (ordinal < 0 || ordinal >= geometry.num_moe_layers()) {
    return Invalid("ordinal", absl::StrCat(ordinal, " is none of ", geometry.num_moe_layers(), " MoE layers"));
  }
  const LayerRouting& layer = geometry.layer(ordinal);
  const auto experts = ExpertParallel::Create(layer.num_experts, ep_size);
  if (!experts.ok()) return experts.status();
  if (absl::Status status = CheckRows(layer, ids, filler_rows); !status.ok()) return status;
  ExpertRankLoad load{.replayed = std::vector<int64_t>(ep_size), .filler = std::vector<int64_t>(ep_size)};
  const int64_t count = static_cast<int64_t>(ids.size()) / layer.id_bytes();
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t id = LoadId(ids.data(), layer.id_bytes(), i);
    if (id >= static_cast<uint32_t>(layer.num_experts)) return InvalidId(layer, i / layer.top_k, id);
    ++load.replayed[experts->FindPlace(static_cast<int32_t>(id))->ep_rank];
  }
  const FillerShape shape{layer.num_experts, layer.top_k, ep_size};
  for (int64_t row = 0; row < filler_rows; ++row) {
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      ++load.filler[experts->FindPlace(FillerId(shape, row, slot, ordinal))->ep_rank];
    }
  }
  return load;
}

}  // namespace routing_replay::trainer
