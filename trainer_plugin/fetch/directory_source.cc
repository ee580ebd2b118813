#include "routing_replay/trainer/source.h"

#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/exported/exported_run.h"
#include "proto/wire/payload/tensor_payload.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "trainer_plugin/fetch/known_sample.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {

struct DirectorySource::Entry {
  ExportedSample exported;
  KnownSample known;
};

struct DirectorySource::Contents {
  std::string run;
  Producer producer = Producer::kRollout;
  Geometry geometry;
  std::vector<Entry> entries;
  std::unordered_map<std::string, size_t> by_name;
  std::unordered_map<int64_t, size_t> by_handle;
};

namespace {

absl::StatusOr<std::vector<Block>> ReadBlocks(const std::filesystem::path& directory, const Geometry& geometry,
                                              const ExportedSample& sample) {
  const auto file = ReadExportedFile(directory, sample);
  if (!file.ok()) return file.status();
  const DecodeOptions options{.unrecorded = sample.unrecorded,
                              .expected_rows = sample.num_tokens - 1,
                              .codec = Codec::kRaw,
                              .max_payload_bytes = sample.file_bytes};
  auto rows =
      DecodeTensor(geometry, {.encoding = Encoding::kNpy, .layer_basis = LayerBasis::kMoeLayers}, *file, options);
  if (!rows.ok()) return WithSample(rows.status(), sample.sample);
  return std::move(rows->blocks);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const DirectorySource>> DirectorySource::Open(const std::filesystem::path& directory,
                                                                             const HandleFunction& handle_of) {
  auto run = ReadExportedRun(directory);
  if (!run.ok()) return run.status();
  auto contents = std::make_unique<Contents>(
      Contents{.run = std::move(run->run), .producer = run->producer, .geometry = std::move(run->geometry)});
  for (ExportedSample& sample : run->samples) {
    contents->by_name[sample.sample] = contents->entries.size();
    const auto [holder, is_new] = contents->by_handle.emplace(handle_of(sample.sample), contents->entries.size());
    if (!is_new) return HandleCollision(sample.sample, contents->entries[holder->second].exported.sample);
    KnownSample known{.num_tokens = sample.num_tokens,
                      .unrecorded = sample.unrecorded,
                      .token_checks = sample.token_checks,
                      .revision = sample.revision,
                      .content_id = sample.content_id,
                      .weights = sample.weights};
    contents->entries.push_back({std::move(sample), std::move(known)});
  }
  return std::unique_ptr<const DirectorySource>(new DirectorySource(directory, std::move(contents)));
}

DirectorySource::DirectorySource(std::filesystem::path directory, std::unique_ptr<const Contents> contents)
    : directory_(std::move(directory)), contents_(std::move(contents)) {}
DirectorySource::~DirectorySource() = default;

const Geometry& DirectorySource::geometry() const { return contents_->geometry; }
const std::string& DirectorySource::run() const { return contents_->run; }
Producer DirectorySource::producer() const { return contents_->producer; }

std::vector<std::string> DirectorySource::samples() const {
  std::vector<std::string> names;
  for (const Entry& entry : contents_->entries) names.push_back(entry.exported.sample);
  return names;
}

const DirectorySource::Entry* DirectorySource::Find(const SampleRead& asked) const {
  if (asked.sample.empty()) {
    const auto found = contents_->by_handle.find(BareHandle(asked.handle));
    return found == contents_->by_handle.end() ? nullptr : &contents_->entries[found->second];
  }
  const auto found = contents_->by_name.find(asked.sample);
  return found == contents_->by_name.end() ? nullptr : &contents_->entries[found->second];
}

SampleRecord DirectorySource::Inspect(const SampleRead& asked, Producer producer) const {
  if (producer != contents_->producer) {
    return {.status = SampleStatus::kNotFound,
            .message = absl::StrCat("the exported run holds rows of producer ", ProducerName(contents_->producer),
                                    ", asked for those of ", ProducerName(producer))};
  }
  const Entry* entry = Find(asked);
  return entry == nullptr ? NoSuchSample(asked) : entry->known.Answer(asked);
}

absl::StatusOr<StagedRows> DirectorySource::Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                                  const FetchOptions& options) const {
  if (absl::Status status = CheckFetch(geometry(), plan, sequences); !status.ok()) return status;
  return Fetch(plan, SlicesToRead(plan, sequences), sequences, options);
}

absl::StatusOr<StagedRows> DirectorySource::Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                                  absl::Span<const FetchSequence> sequences,
                                                  const FetchOptions& options) const {
  absl::Status status = CheckFetch(geometry(), plan, sequences);
  if (!status.ok()) return status;
  StagedRows out;
  StagingSink sink(plan, slices, sequences, options, out);
  const ReadRequest request = MakeReadRequest(plan, slices, sequences, options);
  for (int32_t index = 0; index < static_cast<int32_t>(request.samples.size()); ++index) {
    const SampleRead& asked = request.samples[index];
    SampleRecord record = Inspect(asked, options.producer);
    record.index = index;
    if (status = sink.OnRecord(record); !status.ok()) return status;
    if (record.status != SampleStatus::kOk) continue;
    const auto blocks = ReadBlocks(directory_, geometry(), Find(asked)->exported);
    if (!blocks.ok()) return blocks.status();
    status = StageBlocks(geometry(), plan, *blocks, asked.rows, index, sink);
    if (!status.ok()) return status;
  }
  return out;
}

}  // namespace routing_replay::trainer
