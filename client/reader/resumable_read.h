// A read that goes on where it was when its server went away. Knows no gRPC.
//
//   while (const ReadRequest* part = read->part()) {
//     ask a server for *part; OnBytes for each message; then OnEnd, or OnBreak and another server
//   }
#ifndef CLIENT_READER_RESUMABLE_READ_H_
#define CLIENT_READER_RESUMABLE_READ_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/reader/read_checker.h"
#include "proto/wire/message/byte_chain.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

// The sink sees one read, as from ReadChecker: each record, row and layer once and in order, whoever sent them. What
// the next server says of a sample that was half there must be what the one before said: the same revision and content
// id. Not thread-safe.
class ResumableRead {
 public:
  // INVALID_ARGUMENT naming a layer that carries no routes. All must outlive the read.
  static absl::StatusOr<std::unique_ptr<ResumableRead>> Create(const Geometry& geometry, const ReadRequest& request,
                                                               ReadSink& sink);
  ~ResumableRead();

  // What to ask for now: at first the request, after a break what is missing. Null once the read is complete. Valid
  // until OnEnd or OnBreak.
  const ReadRequest* part() const { return parts_.empty() ? nullptr : &parts_.front().request; }
  // A message of the answer. Errors as of ReadChecker; ABORTED (kOldRevision) naming a sample that is not what it was
  // before the break. An error stays: nothing else may be called then.
  absl::Status OnBytes(const ByteChain& bytes);
  absl::Status OnMessage(const ReadResponse& message);
  // The answer ended well: DATA_LOSS if something is missing.
  absl::Status OnEnd();
  // The answer broke off.
  void OnBreak();

 private:
  class PartSink;
  // Of the samples from `first_sample` on, of the layers from `first_layer` on.
  struct Part {
    ReadRequest request;
    int32_t first_sample = 0;
    int32_t first_layer = 0;
    bool continues = false;  // The sink has the record of its first sample.
    RowRange open_rows;      // Not empty: the rows of one piece of which the layers before have come.
  };

  ResumableRead(const Geometry& geometry, ReadSink& sink, std::vector<int32_t> layers);
  absl::Status Begin();
  std::vector<Part> Rest(const Part& part, const ReadProgress& progress) const;

  const Geometry& geometry_;
  ReadSink& sink_;
  const std::vector<int32_t> layers_;  // Global ids of all that are asked for.
  std::deque<Part> parts_;
  SampleRecord record_;  // The last one that the sink was told of.
  std::unique_ptr<PartSink> part_sink_;
  std::unique_ptr<ReadChecker> checker_;  // Of the first part.
};

}  // namespace routing_replay::client

#endif  // CLIENT_READER_RESUMABLE_READ_H_
