#include "client/rrctl/bench/load.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// A call begun just before the deadline still gets this.
constexpr std::chrono::seconds kGrace(2);

// Each group of K ids is the beginning of a shuffle of all experts, carried on from the group before.
std::vector<uint16_t> RandomIds(const Geometry& geometry, int64_t rows) {
  std::mt19937_64 random(1);
  const LayerRouting& layer = geometry.layer(0);
  std::vector<uint16_t> experts(layer.num_experts);
  std::iota(experts.begin(), experts.end(), 0);
  std::vector<uint16_t> ids;
  ids.reserve(rows * geometry.ids_per_row());
  for (int64_t group = 0; group < rows * geometry.num_moe_layers(); ++group) {
    for (int32_t i = 0; i < layer.top_k; ++i) {
      std::swap(experts[i], experts[i + random() % (experts.size() - i)]);
    }
    ids.insert(ids.end(), experts.begin(), experts.begin() + layer.top_k);
  }
  return ids;
}

// Looks at a read's records, and counts its rows.
class CountingSink final : public ReadSink {
 public:
  absl::Status OnRecord(const SampleRecord& record) override {
    rows_ = 0;
    if (record.status == SampleStatus::kOk) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(SampleStatusName(record.status), ": ", record.message));
  }
  absl::Status OnPiece(const ReadPiece& piece) override {
    if (piece.layer_begin == 0) rows_ += piece.rows.size();
    return absl::OkStatus();
  }
  int64_t rows() const { return rows_; }

 private:
  int64_t rows_ = 0;
};

}  // namespace

BenchLoad::BenchLoad(std::shared_ptr<Run> run, int64_t rows, Clock::Time deadline)
    : run_(std::move(run)), rows_(rows), deadline_(deadline), ids_(RandomIds(run_->geometry(), rows)) {}

std::string BenchLoad::SampleName(int round, int64_t item) { return absl::StrCat(round, "/", item); }

std::chrono::milliseconds BenchLoad::TimeLeft() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::Real().Now());
  return std::max<std::chrono::milliseconds>(left, std::chrono::milliseconds(0)) + kGrace;
}

PhaseTask BenchLoad::MakeAppender(int round) const {
  const std::shared_ptr<Appender> appender = run_->NewAppender({.append_timeout = TimeLeft()});
  return [this, round, appender](int64_t item) {
    const Geometry& geometry = run_->geometry();
    const TensorDescription tensor{.encoding = Encoding::kRaw,
                                   .dtype = DType::kU16,
                                   .shape = {rows_, geometry.num_moe_layers(), geometry.layer(0).top_k},
                                   .layer_basis = LayerBasis::kMoeLayers};
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(ids_.data()), ids_.size() * 2);
    absl::Status status = appender->Append(
        {.sample = SampleName(round, item), .seal_num_tokens = rows_ + 1, .engine = "rrctl bench"}, tensor, bytes);
    return status.ok() ? appender->Flush(TimeLeft()) : status;
  };
}

PhaseTask BenchLoad::MakeReader(int round) const {
  return [this, round](int64_t item) { return ReadBack(SampleName(round, item)); };
}

absl::Status BenchLoad::ReadBack(const std::string& sample) const {
  CountingSink sink;
  if (absl::Status status = run_->Read({.samples = {{.sample = sample}}}, sink, TimeLeft()); !status.ok()) {
    return WithSample(status, sample);
  }
  if (sink.rows() == rows_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat(sample, ": ", sink.rows(), " rows came back of ", rows_),
                   {.sample = sample});
}

}  // namespace routing_replay::client
