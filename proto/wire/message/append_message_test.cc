#include "proto/wire/message/append_message.h"

#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "proto/wire/message/testing/message_test_support.h"
#include "routing_replay/v1/append.pb.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::AddUnknownFields;
using testing::Below;
using testing::Fails;
using testing::ParseDamaged;
using testing::Random;
using testing::RandomBytes;
using testing::RandomChain;
using testing::ToBytes;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<RowRange> RandomHoles(Random& random, RowRange rows) {
  std::vector<RowRange> holes;
  for (int64_t at = rows.begin + static_cast<int64_t>(Below(random, 20)); at + 5 < rows.end;
       at += 6 + static_cast<int64_t>(Below(random, 200))) {
    holes.push_back({at, at + 1 + static_cast<int64_t>(Below(random, 5))});
  }
  return holes;
}

void FillTensor(Random& random, v1::TensorPayload& tensor) {
  tensor.set_encoding(static_cast<v1::TensorPayload::Encoding>(1 + Below(random, 4)));
  tensor.set_compression(static_cast<v1::TensorPayload::Compression>(1 + Below(random, 2)));
  tensor.set_raw_size(random() >> 1);
  tensor.set_dtype(static_cast<v1::TensorPayload::DType>(Below(random, 7)));
  for (uint64_t n = Below(random, 4); n > 0; --n) tensor.add_shape(random() >> (1 + Below(random, 60)));
  tensor.set_layer_basis(static_cast<v1::TensorPayload::LayerBasis>(Below(random, 4)));
  for (uint64_t n = Below(random, 4); n > 0; --n) tensor.add_layer_ids(Below(random, kMaxLayers));
}

void FillBlocks(Random& random, RowRange rows, absl::Span<const RowRange> holes, v1::EncodedBlocks& blocks) {
  for (const RowRange recorded : Subtract(rows, holes)) {
    for (const RowRange part : SplitAtWindows(recorded, 64)) {
      v1::BlockHeader& block = *blocks.add_blocks();
      block.set_row_start(part.begin);
      block.set_rows(part.size());
      block.set_codec(Below(random, 2) ? v1::CODEC_RAW : v1::CODEC_PACKED);
      for (uint64_t n = Below(random, 5); n > 0; --n) block.add_plane_crc32c(random());
    }
  }
}

void FillOptional(Random& random, v1::AppendHeader& header) {
  if (Below(random, 2)) header.set_group(static_cast<int64_t>(random()));
  if (Below(random, 2)) header.set_weight_version(Below(random, 5));
  if (Below(random, 2)) header.set_weight_label("step-\xC3\xA9");
  if (Below(random, 2)) header.set_token_ids(RandomBytes(random, 4 * header.rows()));
  if (Below(random, 2)) header.set_token_check_start(header.row_start() == 0 ? 0 : Below(random, 3));
  if (Below(random, 2)) header.set_seal_num_tokens(1 + Below(random, 1000));
  if (Below(random, 2)) header.set_engine("engine 0.1");
  if (Below(random, 2)) {
    header.mutable_prefix()->set_sample("parent");
    header.mutable_prefix()->set_rows(Below(random, 100));
    header.mutable_prefix()->set_revision(Below(random, 3));
  }
}

v1::AppendRequest RandomRequest(Random& random) {
  v1::AppendRequest request;
  if (Below(random, 2)) request.set_run("run/1");
  if (Below(random, 2)) request.set_want_bytes(random());
  if (Below(random, 8) == 0) return request;
  v1::AppendHeader& header = *request.mutable_append();
  const RowRange rows = RowRange::OfSize(Below(random, 3) * 100, Below(random, 700));
  header.set_append_id(random());
  header.set_sample("step1/0:a");
  header.set_producer(Below(random, 2) ? v1::PRODUCER_ROLLOUT : v1::PRODUCER_TRAINER);
  header.set_row_start(rows.begin);
  header.set_rows(rows.size());
  header.set_revision(Below(random, 3));
  if (Below(random, 2)) header.set_restart_nonce(random());
  if (Below(random, 2)) header.set_resend_key(random());
  FillOptional(random, header);
  std::vector<RowRange> holes = RandomHoles(random, rows);
  const uint64_t kind = Below(random, 3);
  if (kind == 0) holes = rows.empty() ? std::vector<RowRange>{} : std::vector<RowRange>{rows};
  for (const RowRange hole : holes) {
    header.add_unrecorded()->set_begin(hole.begin);
    header.mutable_unrecorded()->rbegin()->set_end(hole.end);
  }
  if (kind == 1) FillTensor(random, *header.mutable_tensor());
  if (kind == 2) FillBlocks(random, rows, holes, *header.mutable_blocks());
  if (kind != 0) request.set_payload(RandomBytes(random, Below(random, 3000)));
  return request;
}

std::string EncodeWhole(const AppendRequest& request) {
  return EncodeAppendRequest(request, request.payload.size()) + ToBytes(request.payload);
}

TEST(AppendMessageTest, EveryRequestSurvivesBothWays) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const v1::AppendRequest expected = RandomRequest(random);
    const std::string bytes = expected.SerializeAsString();
    const auto request = ParseAppendRequest(RandomChain(random, bytes));
    ASSERT_OK(request) << expected.ShortDebugString();
    v1::AppendRequest back;
    ASSERT_TRUE(back.ParseFromString(EncodeWhole(*request)));
    ASSERT_EQ(back.SerializeAsString(), bytes) << expected.ShortDebugString();
  }
}

TEST(AppendMessageTest, FieldsOfTheFutureAreSkipped) {
  Random random(2);
  for (int i = 0; i < 200; ++i) {
    v1::AppendRequest message = RandomRequest(random);
    const std::string expected = message.SerializeAsString();
    AddUnknownFields(message);
    if (message.has_append()) {
      AddUnknownFields(*message.mutable_append());
      for (v1::RowRange& range : *message.mutable_append()->mutable_unrecorded()) AddUnknownFields(range);
      if (message.append().has_prefix()) AddUnknownFields(*message.mutable_append()->mutable_prefix());
      if (message.append().has_tensor()) AddUnknownFields(*message.mutable_append()->mutable_tensor());
      if (message.append().has_blocks()) AddUnknownFields(*message.mutable_append()->mutable_blocks());
    }
    const std::string bytes = message.SerializeAsString();
    const auto request = ParseAppendRequest(RandomChain(random, bytes));
    ASSERT_OK(request);
    v1::AppendRequest back;
    ASSERT_TRUE(back.ParseFromString(EncodeWhole(*request)));
    EXPECT_EQ(back.SerializeAsString(), expected);
  }
}

TEST(AppendMessageTest, DamageIsNeverWorseThanAnError) {
  Random random(3);
  for (int i = 0; i < 15; ++i) {
    v1::AppendRequest message = RandomRequest(random);
    message.set_payload(message.payload().substr(0, 50));
    ParseDamaged(random, message.SerializeAsString(), 1500, [](const ByteChain& chain) {
      const auto request = ParseAppendRequest(chain);
      if (request.ok()) EncodeAppendRequest(*request, request->payload.size());
    });
  }
}

// The status of a small valid request after `change`.
absl::Status Rejection(const std::function<void(v1::AppendRequest&)>& change) {
  v1::AppendRequest message;
  v1::AppendHeader& header = *message.mutable_append();
  header.set_sample("s");
  header.set_row_start(100);
  header.set_rows(50);
  header.mutable_tensor()->set_encoding(v1::TensorPayload::RAW);
  message.set_payload("x");
  change(message);
  const std::string bytes = message.SerializeAsString();
  return ParseAppendRequest(ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})).status();
}

struct RejectionCase {
  const char* field;
  Reason reason;
  std::function<void(v1::AppendRequest&)> change;
};

std::vector<RejectionCase> HeaderRejections() {
  using M = v1::AppendRequest;
  return {
      {"run", Reason::kField, [](M& m) { m.set_run("a b"); }},
      {"append.sample", Reason::kField, [](M& m) { m.mutable_append()->clear_sample(); }},
      {"append.sample", Reason::kField, [](M& m) { m.mutable_append()->set_sample(std::string(129, 'a')); }},
      {"append.producer", Reason::kField, [](M& m) { m.mutable_append()->set_producer(static_cast<v1::Producer>(3)); }},
      {"append.rows", Reason::kField, [](M& m) { m.mutable_append()->set_rows(kMaxRows + 1); }},
      {"append.rows", Reason::kField, [](M& m) { m.mutable_append()->set_rows(~uint64_t{0}); }},
      {"append.rows", Reason::kField, [](M& m) { m.mutable_append()->set_row_start(kMaxRows); }},
      {"append.row_start", Reason::kField, [](M& m) { m.mutable_append()->set_row_start(~uint64_t{0}); }},
      {"append.revision", Reason::kField, [](M& m) { m.mutable_append()->set_revision(~uint64_t{0}); }},
      {"append.weight_version", Reason::kField, [](M& m) { m.mutable_append()->set_weight_version(-2); }},
      {"append.weight_label", Reason::kField,
       [](M& m) { m.mutable_append()->set_weight_label(std::string(129, 'a')); }},
      {"append.engine", Reason::kField, [](M& m) { m.mutable_append()->set_engine(std::string(129, 'a')); }},
      {"append.token_ids", Reason::kLength,
       [](M& m) { m.mutable_append()->set_token_ids(std::string(4 * 50 - 1, 'a')); }},
      {"append.seal_num_tokens", Reason::kRowCount, [](M& m) { m.mutable_append()->set_seal_num_tokens(0); }},
      {"append.prefix.sample", Reason::kField, [](M& m) { m.mutable_append()->mutable_prefix()->set_rows(1); }},
      {"payload", Reason::kField, [](M& m) { m.clear_append(); }},
  };
}

std::vector<RejectionCase> PartRejections() {
  using M = v1::AppendRequest;
  const auto hole = [](M& m, uint64_t begin, uint64_t end) {
    v1::RowRange& range = *m.mutable_append()->add_unrecorded();
    range.set_begin(begin);
    range.set_end(end);
  };
  const auto block = [](M& m, uint64_t start, uint32_t rows) -> v1::BlockHeader& {
    v1::BlockHeader& b = *m.mutable_append()->mutable_blocks()->add_blocks();
    b.set_row_start(start);
    b.set_rows(rows);
    b.set_codec(v1::CODEC_RAW);
    return b;
  };
  return {
      {"append.unrecorded", Reason::kField, [=](M& m) { hole(m, 99, 101); }},
      {"append.unrecorded", Reason::kField, [=](M& m) { hole(m, 149, 151); }},
      {"append.unrecorded", Reason::kField, [=](M& m) { hole(m, 120, 120); }},
      {"append.unrecorded[0].end", Reason::kField, [=](M& m) { hole(m, 121, 120); }},
      {"append.unrecorded", Reason::kField, [=](M& m) { hole(m, 110, 120), hole(m, 120, 121); }},
      {"append.tensor.encoding", Reason::kField, [](M& m) { m.mutable_append()->mutable_tensor()->clear_encoding(); }},
      {"append.tensor.encoding", Reason::kField,
       [](M& m) { m.mutable_append()->mutable_tensor()->set_encoding(static_cast<v1::TensorPayload::Encoding>(5)); }},
      {"append.tensor.dtype", Reason::kDType,
       [](M& m) { m.mutable_append()->mutable_tensor()->set_dtype(static_cast<v1::TensorPayload::DType>(7)); }},
      {"append.tensor.shape", Reason::kShape,
       [](M& m) {
         for (int i = 0; i < 9; ++i) m.mutable_append()->mutable_tensor()->add_shape(1);
       }},
      {"append.tensor.shape", Reason::kField,
       [](M& m) { m.mutable_append()->mutable_tensor()->add_shape(~uint64_t{0}); }},
      {"append.tensor.layer_ids", Reason::kField,
       [](M& m) { m.mutable_append()->mutable_tensor()->add_layer_ids(kMaxLayers); }},
      {"append.unrecorded", Reason::kLength,
       [=](M& m) {
         for (size_t i = 0; i <= kMaxUnrecordedRanges; ++i) hole(m, 0, 1);
       }},
      {"append.blocks.blocks", Reason::kLength,
       [=](M& m) {
         for (size_t i = 0; i <= kMaxBlocks; ++i) block(m, 100, 50);
       }},
      {"append.blocks.blocks[0].rows", Reason::kField, [=](M& m) { block(m, 100, 0); }},
      {"append.blocks.blocks[0].rows", Reason::kField, [=](M& m) { block(m, 100, kMaxBlockRows + 1); }},
      {"append.blocks.blocks[0].codec", Reason::kField, [=](M& m) { block(m, 100, 50).clear_codec(); }},
  };
}

TEST(AppendMessageTest, RejectionsNameTheField) {
  EXPECT_OK(Rejection([](v1::AppendRequest&) {}));
  std::vector<RejectionCase> cases = HeaderRejections();
  for (RejectionCase& c : PartRejections()) cases.push_back(std::move(c));
  for (size_t i = 0; i < cases.size(); ++i) {
    const absl::Status status = Rejection(cases[i].change);
    EXPECT_THAT(status, Fails(kInvalid, cases[i].reason)) << i << " " << cases[i].field;
    const auto detail = GetErrorDetail(status);
    ASSERT_TRUE(detail) << i;
    EXPECT_EQ(detail->field, cases[i].field) << i << " " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), cases[i].field)) << status;
  }
}

TEST(AppendMessageTest, ARejectedAppendIsStillKnownByName) {
  v1::AppendRequest message;
  message.set_run("run");
  message.set_want_bytes(9);
  message.mutable_append()->set_append_id(77);
  message.mutable_append()->set_sample("s");
  message.mutable_append()->set_rows(~uint64_t{0});
  message.set_payload("abc");
  Random random(7);
  const std::string bytes = message.SerializeAsString();
  EXPECT_FALSE(ParseAppendRequest(RandomChain(random, bytes)).ok());
  const auto rejected = ParseRejectedAppend(RandomChain(random, bytes));
  ASSERT_TRUE(rejected);
  EXPECT_EQ(rejected->run, "run");
  EXPECT_EQ(rejected->want_bytes, 9u);
  EXPECT_EQ(rejected->append_id, 77u);
  EXPECT_EQ(rejected->sample, "s");
  EXPECT_EQ(rejected->payload_bytes, 3u);

  message.mutable_append()->set_sample("no id");
  const std::string nameless = message.SerializeAsString();
  EXPECT_EQ(ParseRejectedAppend(RandomChain(random, nameless))->sample, "");
  message.clear_append();
  const std::string empty = message.SerializeAsString();
  EXPECT_FALSE(ParseRejectedAppend(RandomChain(random, empty)));
  ParseDamaged(random, bytes, 2000, [](const ByteChain& chain) { ParseRejectedAppend(chain); });
}

TEST(AppendMessageTest, UnknownCodecIsRejected) {
  const absl::Status status = Rejection([](v1::AppendRequest& m) {
    v1::BlockHeader& b = *m.mutable_append()->mutable_blocks()->add_blocks();
    b.set_row_start(100);
    b.set_rows(50);
    b.set_codec(static_cast<v1::Codec>(3));
  });
  EXPECT_THAT(status, Fails(kInvalid, Reason::kField));
}

TEST(AppendMessageTest, TextThatIsNotUtf8IsRejected) {
  google::protobuf::UnknownFieldSet header, message;
  header.AddLengthDelimited(2, "s");
  header.AddLengthDelimited(16, "caf\xE9");
  ASSERT_TRUE(header.SerializeToString(message.AddLengthDelimited(3)));
  std::string bytes;
  ASSERT_TRUE(message.SerializeToString(&bytes));
  Random random(4);
  EXPECT_THAT(ParseAppendRequest(RandomChain(random, bytes)).status(), Fails(kInvalid, Reason::kEncoding));
}

TEST(AppendMessageTest, AbsentFieldsHaveTheirDefaults) {
  v1::AppendRequest message;
  message.mutable_append()->set_sample("s");
  const std::string bytes = message.SerializeAsString();
  Random random(5);
  ASSERT_OK_AND_ASSIGN(const AppendRequest request, ParseAppendRequest(RandomChain(random, bytes)));
  EXPECT_EQ(request.append->producer, Producer::kRollout);
  EXPECT_EQ(request.append->weight_version, kUnknownWeightVersion);
  EXPECT_FALSE(request.append->group || request.append->token_check_start || request.append->seal_num_tokens);
}

v1::AppendResponse RandomResponse(Random& random) {
  v1::AppendResponse response;
  if (Below(random, 2)) {
    v1::Credit& credit = *response.mutable_credit();
    if (Below(random, 2)) {
      credit.set_granted_bytes(random());
    } else {
      credit.mutable_rejection()->set_code(8);
      credit.mutable_rejection()->set_message("full");
      credit.mutable_rejection()->mutable_detail()->set_reason(v1::ErrorDetail::OVER_BUDGET);
      credit.mutable_rejection()->mutable_detail()->set_retry_after_ms(Below(random, 100));
    }
  }
  if (Below(random, 4)) {
    v1::AppendAck& ack = *response.mutable_ack();
    ack.set_append_id(random());
    ack.set_sample("s");
    for (const int field : {3, 4, 7, 8, 9, 10, 11}) {
      if (Below(random, 2)) continue;
      ack.GetReflection()->SetUInt64(&ack, ack.GetDescriptor()->FindFieldByNumber(field), random() >> 1);
    }
    ack.set_content_id(random());
    ack.set_sealed(Below(random, 2));
    if (Below(random, 2)) {
      ack.mutable_error()->set_code(9);
      ack.mutable_error()->set_message("gap");
      ack.mutable_error()->mutable_detail()->set_reason(v1::ErrorDetail::GAP);
      ack.mutable_error()->mutable_detail()->set_committed_rows(Below(random, 100));
    }
  }
  return response;
}

TEST(AppendMessageTest, EveryResponseSurvivesBothWays) {
  Random random(6);
  for (int i = 0; i < 1000; ++i) {
    v1::AppendResponse message = RandomResponse(random);
    const std::string expected = message.SerializeAsString();
    AddUnknownFields(message);
    const std::string bytes = message.SerializeAsString();
    const auto response = ParseAppendResponse(RandomChain(random, bytes));
    ASSERT_OK(response);
    v1::AppendResponse back;
    ASSERT_TRUE(back.ParseFromString(EncodeAppendResponse(*response)));
    ASSERT_EQ(back.SerializeAsString(), expected);
    if (response->ack) {
      v1::AppendAck put;
      ASSERT_TRUE(put.ParseFromString(EncodeAppendAck(*response->ack)));
      EXPECT_EQ(put.SerializeAsString(), message.ack().SerializeAsString());
      const std::string put_bytes = put.SerializeAsString();
      ASSERT_OK_AND_ASSIGN(const AppendAck ack, ParseAppendAck(RandomChain(random, put_bytes)));
      EXPECT_EQ(EncodeAppendAck(ack), EncodeAppendAck(*response->ack));
    }
    if (i % 50 == 0) {
      ParseDamaged(random, bytes, 500, [](const ByteChain& chain) { ParseAppendResponse(chain).IgnoreError(); });
    }
  }
}

}  // namespace
}  // namespace routing_replay
