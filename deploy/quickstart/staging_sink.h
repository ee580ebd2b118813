// Receives one read into a staging buffer, piece after piece, as realign wants it.
#ifndef DEPLOY_QUICKSTART_STAGING_SINK_H_
#define DEPLOY_QUICKSTART_STAGING_SINK_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/realign.h"

namespace routing_replay::quickstart {

// What a read delivered. Sequences are positions in the micro-batch.
struct Staging {
  std::vector<uint8_t> bytes;
  std::vector<trainer::StagedPiece> pieces;
  std::vector<std::vector<RowRange>> unrecorded;  // Per sequence, all of the sample's.
};

class StagingSink final : public ReadSink {
 public:
  // `sequences` names the sequence of each sample of the request; `staging` outlives the sink and has `unrecorded` of
  // the micro-batch's size.
  StagingSink(std::vector<int32_t> sequences, Staging& staging) : sequences_(std::move(sequences)), staging_(staging) {}

  // INTERNAL unless the sample is complete: the quick start has no fallback.
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

 private:
  std::vector<int32_t> sequences_;
  Staging& staging_;
};

}  // namespace routing_replay::quickstart

#endif  // DEPLOY_QUICKSTART_STAGING_SINK_H_
