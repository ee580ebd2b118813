#include "server/connections/grpc_ports.h"

#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include "tests/support/http_client.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// Encodes a HealthCheckRequest of grpc.health.v1 by hand: its only field is `string service = 1`. The answer is
// HealthCheckResponse {enum status = 1}. No package has generated classes for these messages.
grpc::ByteBuffer Request(const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = std::string("\x0a") + static_cast<char>(service.size()) + service;
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}
constexpr int kServing = 1, kNotServing = 2;
int StatusOf(const grpc::ByteBuffer& message) {
  grpc::Slice slice;
  EXPECT_TRUE(message.DumpToSingleSlice(&slice).ok());
  return slice.size() == 2 ? slice.begin()[1] : -1;
}

class HealthPortTest : public ::testing::Test {
 protected:
  void Start(std::chrono::milliseconds patience = std::chrono::minutes(2)) {
    ASSERT_OK_AND_ASSIGN(port_, HealthPort::Start("127.0.0.1:0", patience));
    stub_ =
        std::make_unique<grpc::GenericStub>(grpc::CreateChannel(port_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::StatusCode Call(const std::string& method, const grpc::ByteBuffer& request, grpc::ByteBuffer* response,
                        grpc_compression_algorithm compression = GRPC_COMPRESS_NONE) {
    grpc::ClientContext context;
    context.set_compression_algorithm(compression);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    grpc::CompletionQueue queue;
    const auto call = stub_->PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(response, &status, nullptr);
    void* tag;
    bool ok;
    queue.Next(&tag, &ok);
    return status.error_code();
  }
  int Check(const std::string& service) {
    grpc::ByteBuffer response;
    const auto code = Call("/grpc.health.v1.Health/Check", Request(service), &response);
    return code == grpc::StatusCode::OK ? StatusOf(response) : -static_cast<int>(code);
  }

  std::unique_ptr<HealthPort> port_;
  std::unique_ptr<grpc::GenericStub> stub_;
};

// A compressed message of a few kilobytes could take gigabytes of memory, so compression is rejected.
TEST_F(HealthPortTest, CompressedMessagesAreRejected) {
  Start();
  const grpc::Slice zeros(std::string(1 << 20, '\0'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ByteBuffer response;
    EXPECT_EQ(Call("/grpc.health.v1.Health/Check", grpc::ByteBuffer(&zeros, 1), &response, algorithm),
              grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_EQ(Check("live"), kServing);
}

TEST_F(HealthPortTest, LiveFromTheStartAndReadyWhenItIsSaid) {
  Start();
  EXPECT_EQ(Check("live"), kServing);
  EXPECT_EQ(Check("ready"), kNotServing);
  EXPECT_EQ(Check(""), kNotServing);
  EXPECT_EQ(Check("other"), -static_cast<int>(grpc::StatusCode::NOT_FOUND));
  port_->SetReady(true);
  EXPECT_EQ(Check("ready"), kServing);
  EXPECT_EQ(Check(""), kServing);
  port_->SetReady(false);
  EXPECT_EQ(Check("ready"), kNotServing);
  EXPECT_EQ(Check("live"), kServing);
}

TEST_F(HealthPortTest, WatchersHearOfChangesAndDoNotHoldUpTheEnd) {
  Start();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  const auto call = stub_->PrepareCall(&context, "/grpc.health.v1.Health/Watch", &queue);
  const auto next = [&queue] {
    void* tag;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  call->WriteLast(Request("ready"), {}, nullptr);
  ASSERT_TRUE(next());
  grpc::ByteBuffer message;
  for (const int expected : {kNotServing, kServing, kNotServing}) {
    call->Read(&message, nullptr);
    ASSERT_TRUE(next());
    EXPECT_EQ(StatusOf(message), expected);
    port_->SetReady(expected == kNotServing);
  }
  port_.reset();
  do call->Read(&message, nullptr);  // A status comes after all messages.
  while (next());
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  EXPECT_FALSE(status.ok());
}

TEST_F(HealthPortTest, NothingElseIsServedThere) {
  grpc::ByteBuffer response;
  Start();
  EXPECT_EQ(Call("/grpc.channelz.v1.Channelz/GetServers", Request(""), &response), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Call("/routing_replay.v1.RoutingReplay/GetServerInfo", Request(""), &response),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(Call("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Request(""), &response),
            grpc::StatusCode::UNIMPLEMENTED);
}

// Everybody can reach the health port, and its connections use file descriptors of the whole process. So connections
// that send nothing, or stop in the middle of a frame, must be closed.
TEST_F(HealthPortTest, PeersThatAreSilentAreCutOff) {
  Start(std::chrono::seconds(1));
  const std::string begin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string("\0\0\0\x04\0\0\0\0\0", 9);
  const std::string half_a_frame("\0\x40\0\x01\x04\0\0\0\x01", 9);  // Headers of 16 KiB are to follow.
  std::vector<std::unique_ptr<HttpConnection>> silent;
  for (const std::string& sent : {std::string(), begin, begin + half_a_frame}) {
    for (int i = 0; i < 20; ++i) {
      silent.push_back(std::make_unique<HttpConnection>(port_->address()));
      silent.back()->Send(sent);
    }
  }
  EXPECT_EQ(Check("live"), kServing);
  for (const auto& connection : silent) connection->ReceiveAll();  // Returns when the server has ended it.
  EXPECT_EQ(Check("live"), kServing);
}

TEST_F(HealthPortTest, AnAddressThatIsTakenIsAnError) {
  Start();
  EXPECT_EQ(HealthPort::Start(port_->address()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace routing_replay::testing
