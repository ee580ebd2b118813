#include "tests/bench/serve/bytes_server.h"

#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bytes_service.grpc.pb.h"

namespace routing_replay::bench {
namespace {

// Serves one client at a time, whose calls do not overlap.
class BytesServiceImpl final : public BytesService::Service {
  grpc::Status Clear(grpc::ServerContext*, const GetRequest*, Stored*) override {
    stored_.clear();
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext*, grpc::ServerReader<Chunk>* reader, Stored* stored) override {
    uint64_t bytes = 0;
    for (Chunk chunk; reader->Read(&chunk); chunk = {}) {
      bytes += chunk.data().size();
      stored_.push_back(std::move(chunk));
    }
    stored->set_bytes(bytes);
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext*, const GetRequest*, grpc::ServerWriter<Chunk>* writer) override {
    for (const Chunk& chunk : stored_) {
      if (!writer->Write(chunk)) return grpc::Status::CANCELLED;
    }
    return grpc::Status::OK;
  }

  std::vector<Chunk> stored_;
};

class BytesServer final : public Role {
 public:
  BytesServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  bool listens() const { return server_ != nullptr; }

  absl::StatusOr<std::string> Do(absl::Span<const std::string>) override { return absl::StrCat(port_); }

 private:
  BytesServiceImpl service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeBytesServer() {
  auto server = std::make_unique<BytesServer>();
  if (!server->listens()) return absl::UnavailableError("the gRPC server does not listen");
  return server;
}

}  // namespace routing_replay::bench
