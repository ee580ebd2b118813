// A sink that decodes a read into one array per sample, which the Python client passes to numpy.
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
  std::vector<RowRange> rows;  // The recorded rows that were read; a normal list.
  Buffer ids;
};

// Receives the records and pieces that a ReadChecker has checked, in the order in which the ReadChecker passes them on.
class PlaneCollector final : public ReadSink {
 public:
  // `ordinals`: the ordinals of the request's layers. The request must outlive the collector.
  PlaneCollector(const Geometry& geometry, const ReadRequest& request, std::vector<int32_t> ordinals);

  // RESOURCE_EXHAUSTED if there is no memory for the rows of the record.
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  int64_t layers() const { return static_cast<int64_t>(ordinals_.size()); }
  // The largest K of the requested layers; slots beyond a layer's own K are 0.
  int64_t top_k() const { return top_k_; }
  // 1 if every requested layer has E <= 256, else 2.
  int32_t id_bytes() const { return id_bytes_; }
  std::vector<int32_t> LayerIds() const;
  std::vector<SamplePlanes>& samples() { return samples_; }
  // Returns the samples as Run::ReadRows does.
  std::vector<SampleRows> ToRows() const;
  // Size of the ids of `rows` rows in bytes.
  int64_t BytesOf(int64_t rows) const { return layers() * rows * top_k_ * id_bytes_; }

 private:
  void DecodeInto(uint8_t* out, int32_t ordinal, const ReadPiece& piece, absl::Span<const uint8_t> cut) const;

  const Geometry& geometry_;
  const ReadRequest& request_;
  const std::vector<int32_t> ordinals_;
  int64_t top_k_ = 0;
  int32_t id_bytes_ = 1;
  std::vector<SamplePlanes> samples_;
  int64_t filled_ = 0;  // Number of rows of the current sample whose first layer has arrived.
  int64_t row_ = 0;     // Where the rows that arrive now begin among the sample's rows.
};

}  // namespace routing_replay::client

#endif  // CLIENT_READER_DECODED_ROWS_H_
