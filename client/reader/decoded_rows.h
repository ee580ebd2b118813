// A sink that decodes into one array per sample: what the Python client hands to numpy.
#ifndef CLIENT_READER_DECODED_ROWS_H_
#define CLIENT_READER_DECODED_ROWS_H_

#include <cstdint>
#include <vector>

#include "proto/wire/buffer.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// A decoded sample: ids [layers][rows][top_k], little-endian, `id_bytes` each.
struct SamplePlanes {
  SampleRecord record;
  std::vector<RowRange> rows;  // The recorded rows read, normal list.
  Buffer ids;                  // Empty where they went into memory of the caller.
};

// Takes records and pieces in the order and with the checks of ReadChecker.
class PlaneCollector final : public ReadSink {
 public:
  // `ordinals` are those of the request's layers. `out`: one per sample, where its ids go; empty: into buffers of their
  // own. Both must outlive the collector.
  PlaneCollector(const Geometry& geometry, const ReadRequest& request, std::vector<int32_t> ordinals,
                 std::vector<absl::Span<uint8_t>> out = {});

  // RESOURCE_EXHAUSTED if there is no memory for the rows that the record promises, OUT_OF_RANGE if `out` has less.
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  int64_t layers() const { return static_cast<int64_t>(ordinals_.size()); }
  // The widest of the layers asked for; slots beyond a layer's own K are 0.
  int64_t top_k() const { return top_k_; }
  // 1 if every layer asked for has E <= 256, else 2.
  int32_t id_bytes() const { return id_bytes_; }
  std::vector<int32_t> LayerIds() const;
  std::vector<SamplePlanes>& samples() { return samples_; }
  // The samples, as Run::ReadRows gives them. Not for ids in memory of the caller.
  std::vector<SampleRows> ToRows() const;
  // Bytes of the ids of so many rows.
  int64_t BytesOf(int64_t rows) const { return layers() * rows * top_k_ * id_bytes_; }

 private:
  absl::Status TakeOut(const SampleRecord& record, int64_t rows);
  void DecodeInto(uint8_t* out, int32_t ordinal, const ReadPiece& piece, absl::Span<const uint8_t> cut) const;

  const Geometry& geometry_;
  const ReadRequest& request_;
  const std::vector<int32_t> ordinals_;
  const std::vector<absl::Span<uint8_t>> out_;
  int64_t top_k_ = 0;
  int32_t id_bytes_ = 1;
  std::vector<SamplePlanes> samples_;
  uint8_t* into_ = nullptr;  // Ids of the last sample.
  int64_t filled_ = 0;       // Rows of the last sample that have begun to come …
  int64_t row_ = 0;          // … and where the present run of rows starts.
};

}  // namespace routing_replay::client

#endif  // CLIENT_READER_DECODED_ROWS_H_
