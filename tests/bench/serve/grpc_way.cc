#include <grpcpp/grpcpp.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bytes_service.grpc.pb.h"
#include "proto/wire/message/grpc_bytes.h"
#include "tests/bench/serve/way.h"

namespace routing_replay::bench {
namespace {

class GrpcWay final : public Way {
 public:
  GrpcWay(int port, const Transfer& transfer, const TransferData& data) : transfer_(transfer), data_(data) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    stub_ = BytesService::NewStub(
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(), arguments));
  }

  absl::Status Prepare(const MessageSize& size, int64_t) override {
    std::vector<Chunk>& chunks = chunks_[size.bytes];
    const int64_t bytes = Transfer::Bytes(size);
    while (static_cast<int32_t>(chunks.size()) < transfer_.Messages(size)) {
      const uint8_t* from = data_.blocks().data() + static_cast<int64_t>(chunks.size()) * bytes;
      chunks.emplace_back().set_data(from, bytes);
    }
    grpc::ClientContext context;
    Stored stored;
    return FromGrpcStatus(stub_->Clear(&context, GetRequest(), &stored));
  }

  absl::Status Put(const MessageSize& size, int64_t) override {
    grpc::ClientContext context;
    Stored stored;
    const auto writer = stub_->Put(&context, &stored);
    for (const Chunk& chunk : chunks_[size.bytes]) writer->Write(chunk);
    writer->WritesDone();
    if (const grpc::Status status = writer->Finish(); !status.ok()) return FromGrpcStatus(status);
    if (static_cast<int64_t>(stored.bytes()) == transfer_.bytes()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("stored ", stored.bytes(), " bytes"));
  }

  absl::Status Get(const MessageSize&, int64_t, absl::Span<uint8_t> out) override {
    grpc::ClientContext context;
    const auto reader = stub_->Get(&context, GetRequest());
    for (Chunk chunk; reader->Read(&chunk);) {
      if (chunk.data().size() > out.size()) return absl::DataLossError("there are more bytes than were put");
      std::memcpy(out.data(), chunk.data().data(), chunk.data().size());
      out.remove_prefix(chunk.data().size());
    }
    return FromGrpcStatus(reader->Finish());
  }

 private:
  const Transfer transfer_;
  const TransferData& data_;
  std::unique_ptr<BytesService::Stub> stub_;
  std::map<int64_t, std::vector<Chunk>> chunks_;  // By message size.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Way>> ConnectGrpc(int port, const Transfer& transfer, const TransferData& data) {
  return std::make_unique<GrpcWay>(port, transfer, data);
}

}  // namespace routing_replay::bench
