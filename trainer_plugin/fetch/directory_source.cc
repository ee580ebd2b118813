#include "routing_replay/trainer/source.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "trainer_plugin/fetch/known_sample.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

struct DirectorySource::Contents {
  std::filesystem::path directory;
  ExportedRun run;
  std::unordered_map<std::string, const ExportedSample*> by_name;  // Points into run.samples, like the next member.
  std::unordered_map<int64_t, const ExportedSample*> by_handle;

  const ExportedSample* Find(const SampleRead& asked) const {
    if (!asked.sample.empty()) {
      const auto found = by_name.find(asked.sample);
      return found == by_name.end() ? nullptr : found->second;
    }
    const auto found = by_handle.find(BareHandle(asked.handle));
    return found == by_handle.end() ? nullptr : found->second;
  }
};

namespace {

absl::StatusOr<std::vector<Block>> ReadBlocks(const std::filesystem::path& directory, const Geometry& geometry,
                                              const ExportedSample& sample) {
  RR_ASSIGN_OR_RETURN(const auto file, ReadExportedFile(directory, sample));
  const DecodeOptions options{.unrecorded = sample.unrecorded,
                              .expected_rows = sample.num_tokens - 1,
                              .codec = Codec::kRaw,
                              .max_payload_bytes = sample.file_bytes};
  auto rows =
      DecodeTensor(geometry, {.encoding = Encoding::kNpy, .layer_basis = LayerBasis::kMoeLayers}, file, options);
  if (!rows.ok()) return WithSample(rows.status(), sample.sample);
  return std::move(rows->blocks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const DirectorySource>> DirectorySource::Open(const std::filesystem::path& directory,
                                                                             const HandleFunction& handle_of) {
  RR_ASSIGN_OR_RETURN(auto run, ReadExportedRun(directory));
  auto contents = std::make_unique<Contents>(Contents{.directory = directory, .run = std::move(run)});
  for (const ExportedSample& sample : contents->run.samples) {
    contents->by_name[sample.sample] = &sample;
    const auto [holder, is_new] = contents->by_handle.emplace(handle_of(sample.sample), &sample);
    if (!is_new) return HandleCollision(sample.sample, holder->second->sample);
  }
  return std::unique_ptr<const DirectorySource>(new DirectorySource(std::move(contents)));
}

DirectorySource::DirectorySource(std::unique_ptr<const Contents> contents) : contents_(std::move(contents)) {}
DirectorySource::~DirectorySource() = default;

const Geometry& DirectorySource::geometry() const { return contents_->run.geometry; }
const std::string& DirectorySource::run() const { return contents_->run.run; }
Producer DirectorySource::producer() const { return contents_->run.producer; }

std::vector<std::string> DirectorySource::samples() const {
  std::vector<std::string> names;
  for (const ExportedSample& sample : contents_->run.samples) names.push_back(sample.sample);
  return names;
}

SampleRecord DirectorySource::Answer(const SampleRead& asked, Producer producer) const {
  if (producer != this->producer()) {
    return {.status = SampleStatus::kNotFound,
            .message = absl::StrCat("the exported run holds rows of producer ", ProducerName(this->producer()),
                                    ", requested ", ProducerName(producer))};
  }
  const ExportedSample* sample = contents_->Find(asked);
  if (sample == nullptr) return NoSuchSample(asked);
  return KnownSample{.num_tokens = sample->num_tokens,
                     .unrecorded = sample->unrecorded,
                     .token_checks = sample->token_checks,
                     .revision = sample->revision,
                     .content_id = sample->content_id,
                     .weights = sample->weights}
      .Answer(asked);
}

absl::Status DirectorySource::Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                                    StagingSink& sink) const {
  RR_ASSIGN_OR_RETURN(const auto blocks, ReadBlocks(contents_->directory, geometry(), *contents_->Find(asked)));
  return StageBlocks(geometry(), plan, blocks, asked.rows, index, sink);
}

}  // namespace routing_replay::trainer
