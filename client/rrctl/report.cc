#include "client/rrctl/report.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/rrctl/diff.h"
#include "client/rrctl/rows.h"
#include "client/rrctl/runs.h"
#include "proto/wire/clock.h"
#include "proto/wire/human.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {
namespace {

bool EndsTheReport(const absl::Status& status) { return ExitCodeFor(status) == kExitUnreachable; }

class Gatherer {
 public:
  Gatherer(Run& run, const ReportOptions& options) : run_(run), options_(options) {}

  absl::Status List() {
    for (auto& [producer, samples] : {std::pair{Producer::kRollout, &rollout_}, {Producer::kTrainer, &trainer_}}) {
      RR_ASSIGN_OR_RETURN(auto listed, run_.List({}, producer));
      *samples = std::move(listed);
    }
    return absl::OkStatus();
  }

  absl::Status ReadRows() {
    std::map<std::string, const SampleState*> recorded;
    for (const SampleState& state : trainer_) recorded.emplace(state.sample, &state);
    ranges_ = GroupRanges(rollout_);
    scan_.emplace(run_.geometry(), ranges_.size());
    compared_.emplace(run_.geometry());
    chosen_ = ChooseSamples(rollout_.size(), static_cast<size_t>(options_.samples));
    for (const size_t position : chosen_) {
      const SampleState& sample = rollout_[position];
      const auto other = recorded.find(sample.sample);
      absl::Status status = ReadOne(sample, other == recorded.end() ? nullptr : other->second);
      if (EndsTheReport(status)) return status;
      if (!status.ok()) damaged_.push_back({{"sample", sample.sample}, {"error", FailureText(status)}});
    }
    CountLoad();
    return absl::OkStatus();
  }

  // The result of CountLoad, layer by layer.
  Document Load() const {
    return PerLayer([&](int32_t i) -> Document {
      const LoadBalance balance = BalanceOf(load_[i]);
      return {{"layer", run_.geometry().layer(i).layer_id},
              {"rows", load_rows_},
              {"experts", load_[i].size()},
              {"unused", balance.unused},
              {"busiest", balance.busiest},
              {"busiest_count", balance.busiest_count},
              {"max_to_mean", OrNull(balance.max_to_mean)},
              {"entropy", OrNull(balance.entropy)},
              {"counts", load_[i]}};
    });
  }

  Document Groups() const {
    Document groups = GroupTable(rollout_, ranges_);
    for (size_t i = 0; i < ranges_.size(); ++i) groups[i]["layers"] = Balances(i);
    return groups;
  }

  Document Samples() const { return {{"all", rollout_.size()}, {"read", chosen_.size()}, {"damaged", damaged_}}; }

  Document Mismatch() const {
    if (trainer_.empty()) return nullptr;
    Document layers =
        PerLayer([&](int32_t i) { return DescribeLayer(run_.geometry().layer(i).layer_id, compared_->layers()[i]); });
    return {{"samples", compared_samples_}, {"rows", compared_->rows()}, {"layers", std::move(layers)}};
  }

 private:
  template <typename Describe>
  Document PerLayer(const Describe& describe) const {
    Document layers = Document::array();
    for (int32_t i = 0; i < run_.geometry().num_moe_layers(); ++i) layers.push_back(describe(i));
    return layers;
  }

  Document Balances(size_t bin) const {
    return PerLayer([&](int32_t i) -> Document {
      const LoadBalance balance = BalanceOf(scan_->counts(bin, i));
      return {{"max_to_mean", OrNull(balance.max_to_mean)}, {"entropy", OrNull(balance.entropy)}};
    });
  }

  // Adds up the counts of all ranges of groups. Each sample is in exactly one of these ranges, so it is counted once.
  void CountLoad() {
    for (const LayerRouting& layer : run_.geometry().layers()) load_.emplace_back(layer.num_experts);
    for (size_t bin = 0; bin < ranges_.size(); ++bin) {
      load_rows_ += scan_->bin_rows(bin);
      for (int32_t i = 0; i < run_.geometry().num_moe_layers(); ++i) {
        const absl::Span<const int64_t> counts = scan_->counts(bin, i);
        for (size_t expert = 0; expert < counts.size(); ++expert) load_[i][expert] += counts[expert];
      }
    }
  }

  // `trainer`: null if the trainer did not record the sample.
  absl::Status ReadOne(const SampleState& rollout, const SampleState* trainer) {
    const size_t bin = RangeOf(ranges_, rollout.group);
    compared_samples_ += trainer != nullptr;
    return ReadPortions(run_, rollout, {0, rollout.committed_rows}, {},
                        [&](RowRange portion, const SampleRows& sample) -> absl::Status {
                          scan_->Add(sample, bin);
                          if (trainer == nullptr) return absl::OkStatus();
                          RR_ASSIGN_OR_RETURN(const auto rows, ReadPortion(run_, *trainer, portion));
                          compared_->Add(sample, rows);
                          return absl::OkStatus();
                        });
  }

  Run& run_;
  const ReportOptions& options_;
  std::vector<SampleState> rollout_, trainer_;
  std::vector<size_t> chosen_;                       // Positions in rollout_.
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // Ranges of groups.
  std::optional<RouteScan> scan_;                    // Has a bin for each range.
  std::vector<std::vector<int64_t>> load_;           // [ordinal][expert]
  int64_t load_rows_ = 0;
  std::optional<RouteComparison> compared_;
  int64_t compared_samples_ = 0;
  Document damaged_ = Document::array();
};

absl::Status WriteReport(Session& session, const ReportOptions& options, const std::string& path) {
  RR_ASSIGN_OR_RETURN(const auto report, session.Answer([&](Client& client) { return GatherReport(client, options); }));
  const std::string page = RenderReport(report, Timestamp(Clock::Real().TimeOfDay()));
  std::ofstream file(path, std::ios::binary);
  file << page << std::flush;
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  return session.Show(Document{{"run", options.run},
                               {"file", path},
                               {"file_bytes", page.size()},
                               {"samples", report["samples"]["all"]},
                               {"read_samples", report["samples"]["read"]},
                               {"damaged_samples", report["samples"]["damaged"].size()}});
}

}  // namespace

absl::StatusOr<Document> GatherReport(Client& client, const ReportOptions& options) {
  RR_ASSIGN_OR_RETURN(const auto run, client.JoinRun(options.run));
  Gatherer gatherer(*run, options);
  RR_RETURN_IF_ERROR(gatherer.List());
  RR_RETURN_IF_ERROR(gatherer.ReadRows());
  RR_ASSIGN_OR_RETURN(auto described, DescribeRun(client, options.run));
  return Document{{"run", std::move(described)},
                  {"load", gatherer.Load()},
                  {"samples", gatherer.Samples()},
                  {"groups", gatherer.Groups()},
                  {"mismatch", gatherer.Mismatch()}};
}

std::string RenderReport(const Document& report, const std::string& made) {
  Document data = report;
  data["made"] = made;
  data["version"] = ROUTING_REPLAY_VERSION;
  // Escapes every '<', so that nothing in the JSON ends the script. Outside its strings JSON has none of these
  // characters.
  const std::string json =
      absl::StrReplaceAll(ToJsonLine(data), {{"<", "\\u003c"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
  return absl::StrReplaceAll(kReportTemplate, {{"{{data}}", json}});
}

void AddReport(Application& application) {
  const auto options = std::make_shared<ReportOptions>();
  const auto path = std::make_shared<std::string>("report.html");
  CLI::App* report = application.Add(
      "report",
      "report a run's routes as one HTML file\n"
      "Expert load, balance over groups, missing rows, and differences from the trainer's record. Figures that need "
      "rows use at most --samples samples; the page says how many.",
      [options, path](Session& session) { return WriteReport(session, *options, *path); });
  AddRun(report, options->run);
  report->add_option("-o,--output", *path, "the file to write")->capture_default_str()->type_name("FILE");
  report
      ->add_option("--samples", options->samples,
                   "limit for the samples whose rows are read; they are chosen at random")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
}

}  // namespace routing_replay::client
