#include "client/rrctl/get.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/rrctl/portions.h"

namespace routing_replay::client {
namespace {

// `portion` of `sample`, which has its recorded rows and the asked layers.
Document ToDocument(const Geometry& geometry, const std::vector<int32_t>& layers, RowRange portion,
                    const SampleRows& sample) {
  Document rows = Document::array();
  int64_t slot = 0;
  auto recorded = sample.rows.begin();
  for (int64_t row = portion.begin; row < portion.end; ++row) {
    while (recorded != sample.rows.end() && recorded->end <= row) ++recorded;
    const bool has_ids = recorded != sample.rows.end() && recorded->contains(row);
    for (size_t i = 0; i < layers.size(); ++i) {
      Document experts;
      if (has_ids) {
        const int32_t k = geometry.layer(*geometry.FindOrdinal(layers[i])).top_k;
        const uint16_t* ids = sample.layers[i].data() + slot * k;
        experts = std::vector<uint16_t>(ids, ids + k);
      }
      rows.push_back({{"row", row}, {"layer", layers[i]}, {"experts", std::move(experts)}});
    }
    slot += has_ids;
  }
  return rows;
}

}  // namespace

absl::Status Get(Client& client, const GetOptions& options, const std::function<absl::Status(const Document&)>& show) {
  const auto run = client.JoinRun(options.run);
  if (!run.ok()) return run.status();
  const auto state = (*run)->Stat(options.sample, options.producer);
  if (!state.ok()) return state.status();
  const Geometry& geometry = (*run)->geometry();
  const std::vector<int32_t> layers = LayersOf(geometry, options.layers);
  const RowRange wanted = options.rows.value_or(RowRange{0, state->committed_rows});
  if (wanted.end > state->committed_rows) {
    return absl::OutOfRangeError(absl::StrCat("--rows: ", wanted.begin, ":", wanted.end, " asked, and sample ",
                                              options.sample, " has ", state->committed_rows, " rows"));
  }
  return ReadPortions(
      **run, {.state = *state, .layers = layers, .rows = wanted, .timeout = options.timeout},
      [&](RowRange portion, const SampleRows& sample) { return show(ToDocument(geometry, layers, portion, sample)); });
}

absl::StatusOr<SampleRows> ReadSample(Run& run, const std::string& sample, Producer producer,
                                      std::chrono::milliseconds timeout) {
  const auto state = run.Stat(sample, producer);
  if (!state.ok()) return state.status();
  const RowRange all{0, state->committed_rows};
  return ReadPortion(run, {.state = *state, .layers = LayersOf(run.geometry()), .rows = all, .timeout = timeout}, all);
}

absl::StatusOr<RowRange> ParseRows(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  RowRange range;
  if (parts.size() == 1 && absl::SimpleAtoi(parts[0], &range.begin) && range.begin >= 0 && range.begin < kMaxRows) {
    return RowRange::OfSize(range.begin, 1);
  }
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &range.begin) && absl::SimpleAtoi(parts[1], &range.end) &&
      range.begin >= 0 && range.begin < range.end && range.end <= kMaxRows) {
    return range;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not ROW or BEGIN:END"));
}

}  // namespace routing_replay::client
