// Unary calls whose request is looked at only after it is known who sends it, and how long it is.
//
// gRPC's own handlers parse a request before anything of ours is asked, and a request of 64 MiB can be written so that
// its objects take thirty times that. Appends and reads are parsed by hand (proto/wire/message) and may be so long;
// nothing else needs to be.
#ifndef SERVER_SERVICE_BOUNDED_UNARY_H_
#define SERVER_SERVICE_BOUNDED_UNARY_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "server/service/request_watch.h"

namespace routing_replay {

// Of a request that is parsed by protobuf: ten thousand of the longest sample ids, and as much again.
inline constexpr int64_t kMaxControlBytes = 4 << 20;

// RESOURCE_EXHAUSTED if a request has so many bytes that it is not to be parsed.
absl::Status CheckControlBytes(size_t bytes);

// A handler for grpc::Service::MarkMethodStreamed: `admit` is asked before anything is received, then the request is
// received while `watch` looks how long that takes, measured and parsed, and `answer` called with it, or `refuse` with
// what is wrong with it.
template <typename Request, typename Response>
grpc::internal::MethodHandler* BoundedUnaryHandler(
    std::function<grpc::Status(grpc::ServerContext&)> admit, std::function<RequestWatch&()> watch,
    std::function<grpc::Status(grpc::ServerContext&, const Request&, Response&)> answer,
    std::function<grpc::Status(grpc::ServerContext&, const absl::Status&)> refuse) {
  using Streamer = grpc::ServerUnaryStreamer<grpc::ByteBuffer, Response>;
  return new grpc::internal::StreamedUnaryHandler<grpc::ByteBuffer, Response>(
      [admit = std::move(admit), watch = std::move(watch), answer = std::move(answer), refuse = std::move(refuse)](
          grpc::ServerContext* call, Streamer* streamer) {
        grpc::Status status = admit(*call);
        if (!status.ok()) return status;
        grpc::ByteBuffer bytes;
        const bool came = [&] {
          const RequestWatch::Wait wait(watch(), *call);
          return streamer->Read(&bytes);
        }();
        if (!came) return grpc::Status(grpc::StatusCode::CANCELLED, "no request came");
        absl::Status parsed = CheckControlBytes(bytes.Length());
        Request request;
        if (parsed.ok() && !grpc::SerializationTraits<Request>::Deserialize(&bytes, &request).ok()) {
          parsed = absl::InvalidArgumentError("the request is not a message of this call");
        }
        bytes.Clear();
        if (!parsed.ok()) return refuse(*call, parsed);
        Response response;
        status = answer(*call, request, response);
        if (status.ok()) streamer->Write(response, grpc::WriteOptions());
        return status;
      });
}

}  // namespace routing_replay

#endif  // SERVER_SERVICE_BOUNDED_UNARY_H_
