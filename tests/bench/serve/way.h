// The ways that this benchmark compares: each moves the data of a Transfer to a server and reads it back.
#ifndef TESTS_BENCH_SERVE_WAY_H_
#define TESTS_BENCH_SERVE_WAY_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/bench/serve/transfer.h"

namespace routing_replay::bench {

// Connected and warm. Each Put replaces the data of the previous one.
class Way {
 public:
  virtual ~Way() = default;
  // Prepares the Put of this round, outside the clock.
  virtual absl::Status Prepare(const MessageSize& size, int64_t round) { return absl::OkStatus(); }
  // Returns when the server has acknowledged everything.
  virtual absl::Status Put(const MessageSize& size, int64_t round) = 0;
  // Reads everything that was put, as blocks.
  virtual absl::Status Get(const MessageSize& size, int64_t round, absl::Span<uint8_t> out) = 0;

  // PutSmall makes one small append and waits for its acknowledgement. GetSmall reads the rows of that append. The way
  // over plain TCP makes an empty round trip for each of the two.
  virtual absl::Status PutSmall(int64_t round) { return absl::UnimplementedError("no small appends"); }
  virtual absl::Status GetSmall(int64_t round) { return PutSmall(round); }
};

// Plain TCP to a hub that stores HubSizes: the floor, because every other way also moves these bytes. With `tls`: over
// TLS, which the hub must support.
absl::StatusOr<std::unique_ptr<Way>> ConnectTcp(int port, bool tls, const Transfer& transfer, const TransferData& data);
// The numbers of bytes that the hub of ConnectTcp stores, by index.
std::vector<size_t> HubSizes(const Transfer& transfer);

// gRPC to a BytesService.
absl::StatusOr<std::unique_ptr<Way>> ConnectGrpc(int port, const Transfer& transfer, const TransferData& data);

// The service with messages that are made outside the clock, so that only the server is measured. `transport`: "direct"
// (over TCP) or "grpc". `cacert`: CA certificate of a server with TLS, or empty.
absl::StatusOr<std::unique_ptr<Way>> ConnectService(const std::string& endpoint, const std::string& transport,
                                                    const std::string& cacert, const Transfer& transfer,
                                                    const TransferData& data);
// The service from an engine's rows over the direct path; the client checks, tiles and sums them inside the clock.
absl::StatusOr<std::unique_ptr<Way>> ConnectAppender(const std::string& endpoint, const Transfer& transfer,
                                                     const TransferData& data);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_WAY_H_
