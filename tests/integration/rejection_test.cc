// Every rejection of the ingest checks over a real stream: checks the code, the reason and the place in the error, that
// nothing is stored, and that the stream continues.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "proto/wire/message/grpc_bytes.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 6;

struct Bad {
  std::string name;
  AppendOptions options;
  TensorDescription tensor;
  std::vector<uint8_t> payload;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  Reason reason = Reason::kField;
  std::optional<int64_t> row = {};
  std::optional<int32_t> layer = {};
};

template <typename T>
std::vector<uint8_t> Bytes(const std::vector<T>& values) {
  const absl::Span<const uint8_t> bytes = AsBytes(values);
  return {bytes.begin(), bytes.end()};
}

// The run has four decoder layers, of which 1 and 3 are MoE layers, with E 64 and K 4.
class RejectionTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer({.memory_budget = 64 << 20});
    auto geometry = Geometry::Create({.num_layers = 4, .moe_layer_ids = {1, 3}, .num_experts = {64}, .top_k = {4}});
    ASSERT_OK(geometry);
    run_ = OpenRun("rejections", *geometry);
    routes_ = MakeRandomRoutes(*geometry, kRows, 1);
    ASSERT_OK(PutRows(*run_, routes_, {0, 3}, {.sample = "stored"}));
  }

  std::vector<int32_t> Good() const { return routes_.Tensor({0, kRows}); }
  std::vector<int32_t> With(int64_t row, int64_t ordinal, int64_t slot, int32_t id) const {
    std::vector<int32_t> tensor = Good();
    tensor[(row * 2 + ordinal) * 4 + slot] = id;
    return tensor;
  }
  TensorDescription Int32() const { return Int32Tensor(run_->geometry(), kRows); }

  std::vector<Bad> IngestTable() const;

  RunHandle run_;
  RandomRoutes routes_;
};

std::vector<Bad> RejectionTest::IngestTable() const {
  std::vector<int32_t> zero_layer = Good();
  for (int64_t row = 0; row < kRows; ++row) std::fill_n(zero_layer.begin() + (row * 2 + 1) * 4, 4, 0);
  TensorDescription axis = Int32(), top_k = Int32(), length = Int32(), base64 = Int32(), no_dtype = Int32();
  axis.shape = {kRows, 3, 4};
  axis.layer_basis = LayerBasis::kUnspecified;
  top_k.shape = {kRows, 2, 3};
  length.shape = {kRows + 1, 2, 4};
  base64.encoding = Encoding::kBase64;
  no_dtype.dtype = DType::kUnspecified;
  const TensorDescription npy{.encoding = Encoding::kNpy};
  const TensorDescription zstd{
      .compression = Compression::kZstd, .raw_size = 100, .dtype = DType::kI32, .shape = Int32().shape};
  TensorDescription bomb = zstd;
  bomb.raw_size = int64_t{1} << 40;
  const std::vector<uint8_t> text = {'A', 'A', '!', 'A'};
  const auto code = absl::StatusCode::kInvalidArgument;
  return {
      {"id past E", {}, Int32(), Bytes(With(2, 1, 3, 64)), code, Reason::kIdRange, 2, 3},
      {"negative id", {}, Int32(), Bytes(With(4, 0, 0, -2)), code, Reason::kIdRange, 4, 1},
      {"half-marked row", {}, Int32(), Bytes(With(1, 1, 2, -1)), code, Reason::kPartialRow, 1, 3},
      {"duplicate id", {}, Int32(), Bytes(With(5, 0, 1, routes_.layers[0][5 * 4])), code, Reason::kDuplicateId, 5, 1},
      {"all-zero layer", {}, Int32(), Bytes(zero_layer), code, Reason::kAllZeroLayer, {}, 3},
      {"layer axis", {}, axis, Bytes(std::vector<int32_t>(kRows * 12)), code, Reason::kShape},
      {"K axis", {}, top_k, Bytes(std::vector<int32_t>(kRows * 6)), code, Reason::kShape},
      {"length", {}, length, Bytes(Good()), code, Reason::kLength},
      {"base64", {}, base64, text, code, Reason::kEncoding},
      {"npy", {}, npy, text, code, Reason::kEncoding},
      {"zstd", {}, zstd, text, code, Reason::kEncoding},
      {"zstd of more than the limit", {}, bomb, text, code, Reason::kLength},
      {"dtype", {}, no_dtype, Bytes(Good()), code, Reason::kDType},
      {"row count at the seal", {.seal_num_tokens = kRows + 5}, Int32(), Bytes(Good()), code, Reason::kRowCount},
      {"gap", {.row_start = 9}, Int32(), Bytes(Good()), absl::StatusCode::kFailedPrecondition, Reason::kGap},
      {"old revision",
       {.revision = 4},
       Int32(),
       Bytes(Good()),
       absl::StatusCode::kFailedPrecondition,
       Reason::kOldRevision},
  };
}

TEST_F(RejectionTest, OnTheAppendStream) {
  std::vector<AppendOutcome> outcomes;
  const auto appender = run_->NewAppender({.on_outcome = [&](const AppendOutcome& o) { outcomes.push_back(o); }});
  int good = 0;
  for (const Bad& bad : IngestTable()) {
    SCOPED_TRACE(bad.name);
    ASSERT_OK_AND_ASSIGN(const SampleState before, run_->Stat("stored"));
    AppendOptions options = bad.options;
    options.sample = "stored";
    absl::Status status = appender->Append(options, bad.tensor, bad.payload);
    if (status.ok()) status = appender->Flush(kCallTimeout);
    EXPECT_THAT(status, Fails(bad.code, bad.reason));
    const auto detail = GetErrorDetail(status).value_or(ErrorDetail{});
    EXPECT_EQ(detail.row, bad.row);
    EXPECT_EQ(detail.layer, bad.layer);
    const std::string message(status.message());
    EXPECT_FALSE(message.empty());
    if (bad.row) {
      EXPECT_THAT(message, HasSubstr(absl::StrCat("row ", *bad.row)));
    }
    if (bad.layer) {
      EXPECT_THAT(message, HasSubstr(absl::StrCat("layer ", *bad.layer)));
    }
    ASSERT_OK_AND_ASSIGN(const SampleState after, run_->Stat("stored"));
    EXPECT_EQ(after.content_id, before.content_id);
    EXPECT_EQ(after.committed_rows, 3);
    EXPECT_EQ(after.stored_bytes, before.stored_bytes);
    // The stream accepts the next sample.
    const std::string next = absl::StrCat("next", good++);
    ASSERT_OK(appender->Append({.sample = next, .seal_num_tokens = kRows + 1}, Int32(), Bytes(Good())));
    ASSERT_OK(appender->Flush(kCallTimeout));
    ExpectRows(*run_, next, routes_, {{0, kRows}});
  }
  EXPECT_EQ(appender->metrics().reconnects, 0);
}

TEST_F(RejectionTest, ByPut) {
  for (const Bad& bad : IngestTable()) {
    SCOPED_TRACE(bad.name);
    AppendOptions options = bad.options;
    options.sample = "new";
    options.revision = 0;
    if (bad.reason == Reason::kOldRevision) continue;
    EXPECT_THAT(run_->Put(options, bad.tensor, bad.payload), Fails(bad.code, bad.reason));
    EXPECT_THAT(run_->Stat("new"), Fails(absl::StatusCode::kNotFound, Reason::kNoSample));
  }
}

TEST_F(RejectionTest, BytesThatAreNoMessage) {
  const auto credentials =
      authority_.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials({.pem_root_certs = authority_});
  grpc::GenericStub stub(grpc::CreateChannel(server_->advertised(), credentials));
  for (const char* method : {"OpenRun", "Seal", "Put"}) {
    const grpc::Slice slice("\xff\xff\xff\xff");
    grpc::ClientContext call;
    grpc::CompletionQueue queue;
    const auto rpc = stub.PrepareUnaryCall(&call, absl::StrCat("/routing_replay.v1.RoutingReplay/", method),
                                           grpc::ByteBuffer(&slice, 1), &queue);
    rpc->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    rpc->Finish(&answer, &status, nullptr);
    void* tag;
    bool ok;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_THAT(FromGrpcStatus(status), Fails(absl::StatusCode::kInvalidArgument, Reason::kEncoding)) << method;
  }
}

}  // namespace
}  // namespace routing_replay::testing
