// A client with only the generated classes puts and reads a sample.
#include <grpcpp/grpcpp.h>

#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "server/server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// The sample has 5 rows and 3 decoder layers, of which 1 and 2 are MoE layers with E 16 and K 2. Its tensor is u8 and
// has columns for all layers.
constexpr int kRows = 5;
uint8_t Id(int row, int layer, int slot) { return static_cast<uint8_t>((3 * row + 5 * layer + slot) % 16); }

std::string AllLayersTensor() {
  std::string bytes;
  for (int row = 0; row < kRows; ++row) {
    bytes += std::string(2, '\0');  // The dense layer 0.
    for (int layer = 1; layer <= 2; ++layer) {
      for (int slot = 0; slot < 2; ++slot) bytes.push_back(static_cast<char>(Id(row, layer, slot)));
    }
  }
  return bytes;
}

class StockClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = Server::Start({.listen = {"127.0.0.1:0"}});
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = v1::RoutingReplay::NewStub(grpc::CreateChannel(server_->advertised(), grpc::InsecureChannelCredentials()));
    v1::OpenRunRequest open;
    open.set_run("stock");
    open.mutable_geometry()->set_num_layers(3);
    open.mutable_geometry()->add_moe_layer_ids(1);
    open.mutable_geometry()->add_moe_layer_ids(2);
    open.mutable_geometry()->add_num_experts(16);
    open.mutable_geometry()->add_top_k(2);
    v1::OpenRunResponse opened;
    grpc::ClientContext context;
    const grpc::Status status = stub_->OpenRun(&context, open, &opened);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  v1::AppendRequest Request(const std::string& sample) {
    v1::AppendRequest request;
    request.set_run("stock");
    v1::AppendHeader& append = *request.mutable_append();
    append.set_sample(sample);
    append.set_rows(kRows);
    append.set_seal_num_tokens(kRows + 1);
    append.mutable_tensor()->set_encoding(v1::TensorPayload::RAW);
    append.mutable_tensor()->set_dtype(v1::TensorPayload::U8);
    for (const int axis : {kRows, 3, 2}) append.mutable_tensor()->add_shape(axis);
    append.mutable_tensor()->set_layer_basis(v1::TensorPayload::ALL_LAYERS);
    request.set_payload(AllLayersTensor());
    return request;
  }

  // Reads layer 2, rows [1, 4).
  void ExpectSlice(const std::string& sample) {
    v1::ReadRequest read;
    read.set_run("stock");
    read.add_layers(2);
    v1::SampleRead& asked = *read.add_samples();
    asked.set_sample(sample);
    asked.add_row_bounds(1);
    asked.add_row_bounds(4);
    grpc::ClientContext context;
    const auto reader = stub_->Read(&context, read);
    v1::ReadResponse message;
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_EQ(message.records_size(), 1);
    EXPECT_EQ(message.records(0).status(), v1::SampleRecord::OK) << message.records(0).message();
    EXPECT_EQ(message.records(0).num_tokens(), kRows + 1u);
    ASSERT_EQ(message.pieces_size(), 1);
    const v1::Piece& piece = message.pieces(0);
    EXPECT_EQ(piece.row_begin(), 1u);
    EXPECT_EQ(piece.rows(), 3u);
    EXPECT_EQ(piece.layer_count(), 1u);
    std::vector<uint8_t> ids;
    uint32_t bit = piece.bit_offset();
    const uint32_t width = piece.codec() == v1::CODEC_PACKED ? 4 : 8;
    for (int i = 0; i < 3 * 2; ++i, bit += width) {
      ids.push_back(static_cast<uint8_t>(message.payload()[bit / 8] >> (bit % 8)) & ((1u << width) - 1));
    }
    for (int row = 1; row < 4; ++row) {
      for (int slot = 0; slot < 2; ++slot) EXPECT_EQ(ids[(row - 1) * 2 + slot], Id(row, 2, slot));
    }
    EXPECT_FALSE(reader->Read(&message));
    EXPECT_TRUE(reader->Finish().ok());
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::RoutingReplay::Stub> stub_;
};

TEST_F(StockClientTest, PutAndRead) {
  grpc::ClientContext context;
  v1::AppendAck ack;
  const grpc::Status status = stub_->Put(&context, Request("a"), &ack);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(ack.committed_rows(), static_cast<uint64_t>(kRows));
  EXPECT_TRUE(ack.sealed());
  ExpectSlice("a");
}

TEST_F(StockClientTest, AppendStreamWithCredit) {
  grpc::ClientContext context;
  const auto stream = stub_->Append(&context);
  v1::AppendRequest want;
  want.set_run("stock");
  want.set_want_bytes(AllLayersTensor().size());
  ASSERT_TRUE(stream->Write(want));
  v1::AppendResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.credit().granted_bytes(), AllLayersTensor().size());
  v1::AppendRequest append = Request("b");
  append.clear_run();
  append.mutable_append()->set_append_id(17);
  ASSERT_TRUE(stream->Write(append));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.ack().append_id(), 17u);
  EXPECT_EQ(response.ack().error().code(), 0) << response.ack().error().message();
  // A short payload needs no credit.
  append.mutable_append()->set_sample("c");
  ASSERT_TRUE(stream->Write(append));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.ack().error().code(), 0) << response.ack().error().message();
  // Without credit, a long payload is rejected in its ack, and the stream continues.
  const std::string short_one = append.payload();
  append.set_payload(std::string(40'000, '\1'));
  ASSERT_TRUE(stream->Write(append));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.ack().error().code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_EQ(response.ack().error().detail().reason(), v1::ErrorDetail::OVER_BUDGET);
  // An invalid header is rejected in its ack, too.
  append.set_payload(short_one);
  append.mutable_append()->set_append_id(18);
  append.mutable_append()->set_weight_version(-5);
  append.set_want_bytes(AllLayersTensor().size());
  ASSERT_TRUE(stream->Write(append));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.ack().append_id(), 18u);
  EXPECT_EQ(response.ack().error().code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(response.ack().error().detail().field(), "append.weight_version");
  append.mutable_append()->clear_weight_version();
  append.clear_want_bytes();
  ASSERT_TRUE(stream->Write(append));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.ack().error().code(), 0) << response.ack().error().message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  ExpectSlice("b");
  ExpectSlice("c");
}

TEST_F(StockClientTest, RejectionCarriesItsDetail) {
  v1::AppendRequest request = Request("d");
  request.mutable_payload()->at(2 * 6 + 2) = 99;  // Row 2, layer 1.
  grpc::ClientContext context;
  v1::AppendAck ack;
  const grpc::Status status = stub_->Put(&context, request, &ack);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  // The details are a serialized google.rpc.Status, which has no generated class here: its field 3 is an Any, with the
  // type URL followed by the value. Skips the tag and the length of the value, two bytes.
  const std::string& details = status.error_details();
  const size_t at = details.find("type.googleapis.com/routing_replay.v1.ErrorDetail");
  ASSERT_NE(at, std::string::npos);
  v1::ErrorDetail detail;
  const size_t value = at + std::string("type.googleapis.com/routing_replay.v1.ErrorDetail").size() + 2;
  ASSERT_TRUE(detail.ParseFromString(details.substr(value)));
  EXPECT_EQ(detail.reason(), v1::ErrorDetail::ID_RANGE);
  EXPECT_EQ(detail.row(), 2u);
  EXPECT_EQ(detail.layer(), 1u);
  EXPECT_EQ(detail.sample(), "d");
}

}  // namespace
}  // namespace routing_replay::testing
