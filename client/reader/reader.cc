#include "client/reader/reader.h"

#include <utility>

#include "client/reader/read_checker.h"
#include "client/reader/read_rows.h"
#include "client/reader/read_stream.h"
#include "proto/wire/message/read_message.h"

namespace routing_replay {

absl::Status ReadInto(const std::shared_ptr<grpc::Channel>& channel, const Geometry& geometry,
                      const ReadRequest& request, ReadSink& sink, Clock::Time deadline) {
  auto checker = ReadChecker::Create(geometry, request, sink);
  if (!checker.ok()) return checker.status();
  ReadStream stream(channel, EncodeReadRequest(request), deadline);
  while (true) {
    const auto bytes = stream.Next();
    if (!bytes.ok()) return bytes.status();
    if (!bytes->has_value()) return (*checker)->OnEnd();
    if (absl::Status status = (*checker)->OnBytes((*bytes)->chain()); !status.ok()) return status;
  }
}

absl::StatusOr<std::vector<SampleRows>> ReadDecoded(const std::shared_ptr<grpc::Channel>& channel,
                                                    const Geometry& geometry, const ReadRequest& request,
                                                    Clock::Time deadline) {
  auto ordinals = LayerOrdinals(geometry, request.layers);
  if (!ordinals.ok()) return ordinals.status();
  RowCollector rows(geometry, *std::move(ordinals));
  if (absl::Status status = ReadInto(channel, geometry, request, rows, deadline); !status.ok()) return status;
  return rows.Take();
}

}  // namespace routing_replay
