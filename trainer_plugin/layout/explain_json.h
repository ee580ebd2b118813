// What `rrctl plan --explain` and `rrctl diagnose` answer, from the description of a plan (rrt_plan_new in
// routing_replay/trainer/capi.h).
#ifndef TRAINER_PLUGIN_LAYOUT_EXPLAIN_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_EXPLAIN_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/diagnose.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::trainer {

// {"layers": [{"pp": 0, "chunk": 0, "decoder_layers": [[0, 13]], "moe_layers": [[1, 13]], "num_moe": 12, "mtp": 0}, …],
//  "rows": [{"sample": "math-7/0", "cp": 0, "tp": 0, "rows": [[0, 4]], "without_route": [], "at": ["0:4"]}, …],
//  "rank": {"pp": 1, "chunk": null, "cp": 0, "tp": 0, "local_rows": 4, "rows_to_read": 4, "bytes_to_read": 336,
//           "index_bytes": 336, "padded_bytes": 0},
//  "warnings": []}
// rows: what every rank of the micro-batch holds of each sample, then its padding; tp null: all of them. at: local
// rows "begin:end" or "begin:end:step". A sample without a name is "#" and its index. Ranges are half-open.
absl::StatusOr<nlohmann::ordered_json> ExplainFromJson(absl::string_view description);

// A description with what was seen on its rank beside it:
//   {…, "observed": {"rows": [[0, 3], null, …], "layers": [13, 14, …]}}
// rows: per local row [sequence, row] of the route that was replayed there, or null; layers: per MoE layer of the rank
// the decoder layer whose routes it was given. One of them may be absent.
struct Observed {
  DescribedPlan described;
  std::vector<LocalRow> rows;
  std::vector<int32_t> layers;
  bool has_rows = false, has_layers = false;
};
absl::StatusOr<Observed> ObservedFromJson(absl::string_view description);

// [{"of": "rows", "mistakes": ["partition_contiguous"], "matched": 10, "compared": 10, "exact": true, "what": "…"}, …]:
// all exact explanations, or else the nearest ones.
absl::StatusOr<nlohmann::ordered_json> Diagnose(const Observed& observed);
// The same from ids that the routers replayed. `recorded`: per sequence of the description.
absl::StatusOr<nlohmann::ordered_json> DiagnoseIds(const DescribedPlan& described,
                                                   const std::vector<RouteIds>& recorded, const RouteIds& seen);

// Whether the record fits what the rank's routers choose by themselves (routing_replay/trainer/diagnose.h):
//   {"misaligned": true, "kept": 0.04, "chance": 0.06, "explained_kept": 0.97, "sequence": 1, "layer": 17,
//    "explanations": [{"of": "rows", …}, {"of": "layers", …}]}
// sequence: of the micro-batch; it and layer are null where nothing is compared. Explanations as above, and count
// experts.
absl::StatusOr<nlohmann::ordered_json> JudgeIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                                const RouteIds& live);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_EXPLAIN_JSON_H_
