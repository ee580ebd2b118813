// What is known of samples before their rows are fetched: by it the ranks of a replica agree on what to replay.
#ifndef TRAINER_PLUGIN_FETCH_INSPECT_H_
#define TRAINER_PLUGIN_FETCH_INSPECT_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/staging.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/read_request.h"

namespace routing_replay::trainer {

// A read that says of each sample what one of all its rows would say, for the price of one row of one layer: its last
// row, by T or else by its token checks, so that it waits for all of them; the first where neither is given.
ReadRequest MakeInspectRequest(const Geometry& geometry, absl::Span<const FetchSequence> sequences,
                               const FetchOptions& options);

// Keeps what the answer to MakeInspectRequest of these sequences says. A sample of one token, which has no rows, is kOk
// although the first was asked for; one that is not sealed yet is kNotReady, however many of its rows there are.
class InspectSink final : public ReadSink {
 public:
  explicit InspectSink(absl::Span<const FetchSequence> sequences);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  // The answer ends here: samples that nothing is known of are kNotReady, `why` being their message.
  void GiveUp(absl::string_view why);
  // One per sample.
  const std::vector<SampleRecord>& records() const { return records_; }

 private:
  std::vector<SampleRecord> records_;
  std::vector<bool> may_have_no_rows_;  // Of each sample, by what was said of it.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_INSPECT_H_
