// What the calls do that carry no payload: generated messages in and out.
#ifndef SERVER_SERVICE_CONTROL_METHODS_H_
#define SERVER_SERVICE_CONTROL_METHODS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admission/byte_budget.h"

namespace routing_replay::server {

class CallRecord;
struct ServiceContext;

// Of a request: it is parsed by protobuf, and could be written so that its objects take thirty times its length.
// Ten thousand of the longest sample ids, and as much again.
inline constexpr int64_t kMaxControlBytes = 4 << 20;

// Samples that one Stat or Release may name.
inline constexpr int kMaxNames = 16384;

// RESOURCE_EXHAUSTED (kLength) if a request is longer. Asked before it waits for a thread, where it takes memory.
absl::Status CheckControlBytes(size_t bytes);

struct ControlCaller {
  const grpc::ServerContext& call;
  const CallRecord& record;
  // Thread-safe; true once nobody waits for the answer.
  std::function<bool()> is_gone;
  // What the answer takes, of ServiceContext::control_memory: to be held until it is taken.
  ByteReservation& memory;
};

struct ControlMethod {
  const char* name;
  // The answer to a request, of which nothing is left. May wait for the store. Asks whether the caller may; errors are
  // the call's: INVALID_ARGUMENT if the bytes are no message of it. Requires CheckControlBytes.
  std::function<absl::StatusOr<grpc::ByteBuffer>(ServiceContext&, const ControlCaller&, grpc::ByteBuffer& request)>
      answer;
};

// Every method of the service but Append, Put and Read.
const std::vector<ControlMethod>& ControlMethods();

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_CONTROL_METHODS_H_
