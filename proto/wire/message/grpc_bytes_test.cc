#include <memory>

#include "proto/wire/message/grpc_bytes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

TEST(ByteBufferTest, PartsArriveInOrderAndOwnersAreReleased) {
  auto owner = std::make_shared<std::vector<uint8_t>>(100000, uint8_t{7});
  const std::weak_ptr<std::vector<uint8_t>> watch = owner;
  ByteBufferBuilder builder;
  builder.Add("header");
  builder.Add(*owner, owner);
  grpc::ByteBuffer buffer = builder.Build();
  owner.reset();
  {
    ASSERT_OK_AND_ASSIGN(const ReceivedBytes received, ReceivedBytes::From(buffer));
    ASSERT_EQ(received.chain().size(), 6 + 100000u);
    std::string head(8, '\0');
    ChainCursor(received.chain()).CopyTo({reinterpret_cast<uint8_t*>(head.data()), head.size()});
    EXPECT_EQ(head, "header\7\7");
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(GrpcStatusTest, DetailSurvives) {
  ErrorDetail detail{.reason = Reason::kGap, .sample = "a"};
  detail.committed_rows = 17;
  const absl::Status sent = MakeError(absl::StatusCode::kFailedPrecondition, "gap", detail);
  const absl::Status got = FromGrpcStatus(ToGrpcStatus(sent));
  EXPECT_EQ(got.code(), sent.code());
  EXPECT_EQ(got.message(), "gap");
  EXPECT_EQ(GetErrorDetail(got), detail);
  EXPECT_OK(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())));
}

// The status that gRPC gives to calls which a stopping server never handled.
TEST(GrpcStatusTest, ABareCancellationIsAServerThatIsGone) {
  EXPECT_TRUE(absl::IsUnavailable(FromGrpcStatus(grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED"))));
  EXPECT_TRUE(absl::IsCancelled(FromGrpcStatus(ToGrpcStatus(absl::CancelledError("asked to stop")))));
}

}  // namespace
}  // namespace routing_replay
