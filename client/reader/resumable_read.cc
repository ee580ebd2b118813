#include "client/reader/resumable_read.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

// The whole read's sink as the sink of a part.
class ResumableRead::PartSink final : public ReadSink {
 public:
  PartSink(const Part& part, SampleRecord& record, ReadSink& sink)
      : part_(part), record_(record), sink_(sink), joins_(part.continues) {}

  absl::Status OnRecord(const SampleRecord& record) override {
    const bool joined = std::exchange(joins_, false);
    const bool same = record.status == SampleStatus::kOk && record.revision == record_.revision &&
                      record.content_id == record_.content_id;
    if (joined && same) return absl::OkStatus();
    if (joined && record.status != SampleStatus::kLost) return Changed(record);
    record_ = record;
    record_.index += part_.first_sample;
    return sink_.OnRecord(record_);
  }

  absl::Status OnPiece(const ReadPiece& piece) override {
    if (!part_.open_rows.empty() && piece.rows != part_.open_rows) return Changed(record_);
    ReadPiece whole = piece;
    whole.sample_index += part_.first_sample;
    whole.layer_begin += part_.first_layer;
    return sink_.OnPiece(whole);
  }

  std::vector<uint8_t>* staging() override { return sink_.staging(); }

 private:
  absl::Status Changed(const SampleRecord& record) const {
    const SampleRead& asked = part_.request.samples.front();
    const std::string sample = DescribeSample(asked.sample, asked.handle);
    return MakeError(
        absl::StatusCode::kAborted,
        absl::StrCat("sample ", sample, " changed while it was read from one server and then another: ",
                     SampleStatusName(record.status), ", revision ", record.revision, " after ", record_.revision),
        {.reason = Reason::kOldRevision, .sample = asked.sample, .revision = record.revision});
  }

  const Part& part_;
  SampleRecord& record_;
  ReadSink& sink_;
  bool joins_;  // The next record is of a sample that the sink knows.
};

ResumableRead::ResumableRead(const Geometry& geometry, ReadSink& sink, std::vector<int32_t> layers)
    : geometry_(geometry), sink_(sink), layers_(std::move(layers)) {}

ResumableRead::~ResumableRead() = default;

absl::StatusOr<std::unique_ptr<ResumableRead>> ResumableRead::Create(const Geometry& geometry,
                                                                     const ReadRequest& request, ReadSink& sink) {
  const auto ordinals = LayerOrdinals(geometry, request.layers);
  if (!ordinals.ok()) return ordinals.status();
  std::vector<int32_t> layers;
  for (const int32_t ordinal : *ordinals) layers.push_back(geometry.layer(ordinal).layer_id);
  std::unique_ptr<ResumableRead> read(new ResumableRead(geometry, sink, std::move(layers)));
  read->parts_.push_back({.request = request});
  if (absl::Status status = read->Begin(); !status.ok()) return status;
  return read;
}

absl::Status ResumableRead::Begin() {
  // A sample that was taken back has no rows to come.
  if (!parts_.empty() && parts_.front().continues && record_.status != SampleStatus::kOk) {
    Part& front = parts_.front();
    front.continues = false;
    ++front.first_sample;
    front.request.samples.erase(front.request.samples.begin());
    if (front.request.samples.empty()) parts_.pop_front();
  }
  if (parts_.empty()) return absl::OkStatus();
  const Part& part = parts_.front();
  part_sink_ = std::make_unique<PartSink>(part, record_, sink_);
  auto checker = ReadChecker::Create(geometry_, part.request, *part_sink_);
  if (!checker.ok()) return checker.status();
  checker_ = *std::move(checker);
  return absl::OkStatus();
}

absl::Status ResumableRead::OnBytes(const ByteChain& bytes) { return checker_->OnBytes(bytes); }

absl::Status ResumableRead::OnMessage(const ReadResponse& message) { return checker_->OnMessage(message); }

absl::Status ResumableRead::OnEnd() {
  if (absl::Status status = checker_->OnEnd(); !status.ok()) return status;
  parts_.pop_front();
  return Begin();
}

void ResumableRead::OnBreak() {
  const ReadProgress progress = checker_->progress();
  if (progress.sample >= 0) {
    const std::vector<Part> rest = Rest(parts_.front(), progress);
    parts_.pop_front();
    parts_.insert(parts_.begin(), rest.begin(), rest.end());
  }
  Begin().IgnoreError();  // Its layers are some of those that were good at the start.
}

std::vector<ResumableRead::Part> ResumableRead::Rest(const Part& part, const ReadProgress& progress) const {
  std::vector<Part> rest;
  const int32_t at = part.first_sample + progress.sample;
  const std::vector<SampleRead>& samples = part.request.samples;
  if (progress.open_layers > 0) {
    Part open{.request = part.request,
              .first_sample = at,
              .first_layer = part.first_layer + progress.open_layers,
              .continues = true,
              .open_rows = progress.open_rows};
    open.request.layers.assign(layers_.begin() + open.first_layer, layers_.end());
    open.request.samples = {samples[static_cast<size_t>(progress.sample)]};
    open.request.samples.front().rows = {progress.open_rows};
    rest.push_back(std::move(open));
  }
  Part after = part;
  after.continues = !progress.missing.empty();
  const int32_t done = progress.sample + (after.continues ? 0 : 1);
  after.first_sample = part.first_sample + done;
  after.request.samples.assign(samples.begin() + done, samples.end());
  if (after.continues) after.request.samples.front().rows = progress.missing;
  if (!after.request.samples.empty()) rest.push_back(std::move(after));
  return rest;
}

}  // namespace routing_replay::client
