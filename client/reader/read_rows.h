// A sink that decodes: for tools and tests.
#ifndef CLIENT_READER_READ_ROWS_H_
#define CLIENT_READER_READ_ROWS_H_

#include <vector>

#include "routing_replay/client.h"

namespace routing_replay::client {

// Collects every sample of a read as ids. Takes records and pieces in the order and with the checks of ReadChecker.
class RowCollector final : public ReadSink {
 public:
  // `ordinals` are those of the request's layers.
  RowCollector(const Geometry& geometry, std::vector<int32_t> ordinals)
      : geometry_(geometry), ordinals_(std::move(ordinals)) {}

  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  std::vector<SampleRows> Take() { return std::move(samples_); }

 private:
  const Geometry& geometry_;
  const std::vector<int32_t> ordinals_;
  std::vector<SampleRows> samples_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_READER_READ_ROWS_H_
