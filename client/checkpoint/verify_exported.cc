#include <algorithm>

#include "proto/exported/exported_run.h"
#include "proto/exported/files.h"
#include "proto/exported/npy_shape.h"
#include "proto/wire/block/id_check.h"
#include "proto/wire/payload/npy.h"
#include "routing_replay/checkpoint.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

// The ids of a sample's file, [recorded rows][MoE layers][K], if header and size still are those of its sample.
std::optional<ExportedIds> IdsAsTheyAre(const std::filesystem::path& directory, const Geometry& geometry,
                                        const ExportedSample& sample) {
  auto file = ReadFile(directory / sample.file);
  if (!file.ok() || static_cast<int64_t>(file->size()) != sample.file_bytes) return std::nullopt;
  const auto header = ParseNpyHeader(*file);
  const std::vector<int64_t> shape = NpyShape(geometry, sample);
  if (!header.ok() || header->dtype != NpyDType(geometry) || header->shape != shape) return std::nullopt;
  const int64_t ids = shape[0] * shape[1] * shape[2];
  if (static_cast<int64_t>(file->size() - header->data_offset) != ids * geometry.max_id_bytes()) return std::nullopt;
  return ExportedIds(*std::move(file), header->data_offset);
}

// One layer's ids of consecutive rows, as FindIdFault takes them.
struct Plane {
  std::vector<uint8_t> ids;
  int64_t rows = 0;
};

// From [rows][MoE layers][K]; ends before an id that is wider than its layer's are.
Plane PlaneOf(const Geometry& geometry, int32_t ordinal, absl::Span<const uint8_t> ids, int64_t rows) {
  const LayerRouting& layer = geometry.layer(ordinal);
  const int64_t width = geometry.max_id_bytes(), cell = geometry.max_top_k() * width;
  Plane plane;
  for (; plane.rows < rows; ++plane.rows) {
    std::vector<uint8_t> row;
    for (int32_t k = 0; k < layer.top_k; ++k) {
      const uint8_t* id = ids.data() + (plane.rows * geometry.num_moe_layers() + ordinal) * cell + k * width;
      if (layer.id_bytes() < width && id[1] != 0) return plane;
      row.insert(row.end(), id, id + layer.id_bytes());
    }
    plane.ids.insert(plane.ids.end(), row.begin(), row.end());
  }
  return plane;
}

// The row of a sample that its file has in a place.
int64_t RowAt(const ExportedSample& sample, int64_t place) {
  for (const RowRange range : Subtract({0, sample.num_tokens - 1}, sample.unrecorded)) {
    if (place < range.size()) return range.begin + place;
    place -= range.size();
  }
  return sample.num_tokens - 1;
}

// A CRC of the whole file does not say where it is damaged; ids that nobody can have appended do.
void Locate(const std::filesystem::path& directory, const Geometry& geometry, const ExportedSample& sample,
            DamagedSample& damaged) {
  const auto file = IdsAsTheyAre(directory, geometry, sample);
  if (!file) return;
  int64_t first = sample.recorded_rows();
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting& layer = geometry.layer(ordinal);
    const Plane plane = PlaneOf(geometry, ordinal, file->ids(), first);
    const auto fault = FindIdFault(layer, plane.ids, plane.rows, /*duplicates=*/true);
    const int64_t place = fault ? fault->row : plane.rows;
    if (place == first) continue;
    first = place;
    damaged.row = RowAt(sample, place);
    damaged.layer = layer.layer_id;
  }
}

}  // namespace

absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory, const VerifyOptions& options) {
  const auto exported = ReadExportedRun(directory);
  if (!exported.ok()) return exported.status();
  std::vector<const ExportedSample*> samples;
  for (const ExportedSample& sample : exported->samples) {
    const auto& groups = options.groups;
    if (!groups || (sample.group >= groups->first && sample.group < groups->second)) samples.push_back(&sample);
  }
  std::sort(samples.begin(), samples.end(), [](const auto* a, const auto* b) { return a->sample < b->sample; });
  VerifyOutcome outcome;
  for (const ExportedSample* sample : samples) {
    ++outcome.samples;
    outcome.bytes += sample->file_bytes;
    const absl::Status status = ReadExportedIds(directory, exported->geometry, *sample).status();
    if (status.ok()) {
      outcome.rows += sample->recorded_rows();
    } else {
      DamagedSample& damaged = outcome.damaged.emplace_back();
      damaged.sample = sample->sample;
      damaged.what = std::string(status.message());
      Locate(directory, exported->geometry, *sample, damaged);
    }
    if (options.on_progress) {
      options.on_progress(
          {.samples = outcome.samples, .total = static_cast<int64_t>(samples.size()), .bytes = outcome.bytes});
    }
  }
  return outcome;
}

}  // namespace routing_replay
