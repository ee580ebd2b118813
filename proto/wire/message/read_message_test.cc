#include "proto/wire/message/read_message.h"

#include <functional>
#include <random>

#include "proto/wire/message/testing/message_test_support.h"
#include "routing_replay/v1/read.pb.h"
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

v1::ReadRequest RandomRequest(Random& random) {
  v1::ReadRequest request;
  request.set_run("run");
  request.set_producer(Below(random, 2) ? v1::PRODUCER_ROLLOUT : v1::PRODUCER_TRAINER);
  for (uint32_t layer = Below(random, 5); Below(random, 4); layer += 1 + Below(random, 9)) request.add_layers(layer);
  for (uint64_t n = Below(random, 6); n > 0; --n) {
    v1::SampleRead& sample = *request.add_samples();
    if (Below(random, 2)) {
      sample.set_sample("step1/3");
    } else {
      sample.set_handle(static_cast<int64_t>(random()));
    }
    for (uint64_t at = Below(random, 100); Below(random, 3); at += 1 + Below(random, 1000)) {
      sample.add_row_bounds(at);
      at += 1 + Below(random, 100);
      sample.add_row_bounds(at);
    }
    if (Below(random, 2)) sample.set_num_tokens(Below(random, 1000));
    if (Below(random, 2)) {
      sample.add_token_checks()->set_rows(Below(random, 1000));
      sample.mutable_token_checks(0)->set_crc32c(1 + Below(random, 1u << 31));
    }
    if (Below(random, 2)) sample.set_min_weight_version(static_cast<int64_t>(random()));
    if (Below(random, 2)) sample.set_max_weight_version(0);
  }
  request.set_wait(Below(random, 2));
  request.set_max_message_bytes(Below(random, 1u << 31));
  return request;
}

TEST(ReadMessageTest, EveryRequestSurvivesBothWays) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    v1::ReadRequest message = RandomRequest(random);
    const std::string expected = message.SerializeAsString();
    AddUnknownFields(message);
    for (v1::SampleRead& sample : *message.mutable_samples()) AddUnknownFields(sample);
    const std::string bytes = message.SerializeAsString();
    const auto request = ParseReadRequest(RandomChain(random, bytes));
    ASSERT_OK(request) << message.ShortDebugString();
    v1::ReadRequest back;
    ASSERT_TRUE(back.ParseFromString(EncodeReadRequest(*request)));
    ASSERT_EQ(back.SerializeAsString(), expected) << message.ShortDebugString();
    if (i % 100 == 0) {
      ParseDamaged(random, bytes, 500, [](const ByteChain& chain) { ParseReadRequest(chain).IgnoreError(); });
    }
  }
}

v1::ReadResponse RandomResponse(Random& random) {
  v1::ReadResponse response;
  for (uint32_t n = Below(random, 4), i = 0; i < n; ++i) {
    v1::SampleRecord& record = *response.add_records();
    record.set_index(i);
    record.set_status(static_cast<v1::SampleRecord::SampleStatus>(Below(random, 10)));
    if (Below(random, 2)) record.set_message("why");
    record.set_committed_rows(Below(random, 1000));
    if (Below(random, 2)) record.set_num_tokens(Below(random, 1000));
    record.set_revision(Below(random, 5));
    record.set_content_id(random());
    for (uint64_t at = Below(random, 5); Below(random, 3); at += 1 + Below(random, 100)) {
      v1::RowRange& range = *record.add_unrecorded();
      range.set_begin(at);
      range.set_end(at += 1 + Below(random, 10));
    }
    for (uint64_t k = Below(random, 3); k > 0; --k) {
      v1::WeightSpan& span = *record.add_weights();
      span.mutable_rows()->set_end(Below(random, 100));
      span.set_version(static_cast<int64_t>(Below(random, 4)) - 1);
      if (Below(random, 2)) span.set_label("label");
    }
  }
  for (uint64_t n = Below(random, 6); n > 0; --n) {
    v1::Piece& piece = *response.add_pieces();
    piece.set_sample_index(Below(random, 1u << 31));
    piece.set_layer_begin(Below(random, kMaxMoeLayers));
    piece.set_layer_count(1 + Below(random, 20));
    piece.set_row_begin(Below(random, 5000));
    piece.set_rows(1 + Below(random, 256));
    piece.set_codec(Below(random, 2) ? v1::CODEC_RAW : v1::CODEC_PACKED);
    if (piece.codec() == v1::CODEC_PACKED) piece.set_bit_offset(Below(random, 8));
    piece.set_bytes(Below(random, 300));
    for (uint32_t k = 0; k < piece.layer_count(); ++k) piece.add_cut_crc32c(random());
    response.mutable_payload()->append(RandomBytes(random, piece.bytes()));
  }
  return response;
}

TEST(ReadMessageTest, EveryResponseSurvivesBothWays) {
  Random random(2);
  for (int i = 0; i < 1000; ++i) {
    v1::ReadResponse message = RandomResponse(random);
    const std::string expected = message.SerializeAsString();
    AddUnknownFields(message);
    for (v1::SampleRecord& record : *message.mutable_records()) AddUnknownFields(record);
    for (v1::Piece& piece : *message.mutable_pieces()) AddUnknownFields(piece);
    const std::string bytes = message.SerializeAsString();
    const auto response = ParseReadResponse(RandomChain(random, bytes));
    ASSERT_OK(response) << message.ShortDebugString();
    v1::ReadResponse back;
    ASSERT_TRUE(back.ParseFromString(EncodeReadResponse(response->records, response->pieces, response->payload.size()) +
                                     ToBytes(response->payload)));
    ASSERT_EQ(back.SerializeAsString(), expected) << message.ShortDebugString();
    if (i % 100 == 0) {
      ParseDamaged(random, bytes, 500, [](const ByteChain& chain) { ParseReadResponse(chain).IgnoreError(); });
    }
  }
}

ByteChain AsChain(const std::string& bytes) {
  return ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

template <typename Message, typename Parse>
void ExpectRejected(const Message& message, Parse parse, const std::string& field, Reason reason = Reason::kField) {
  const std::string bytes = message.SerializeAsString();
  const absl::Status status = parse(AsChain(bytes)).status();
  EXPECT_THAT(status, Fails(kInvalid, reason)) << field;
  EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, field) << status;
}

absl::StatusOr<ReadRequest> ParseRequest(const ByteChain& bytes) { return ParseReadRequest(bytes); }

TEST(ReadMessageTest, RequestRejectionsNameTheField) {
  const auto reject = [](const std::string& field, const std::function<void(v1::ReadRequest&)>& change,
                         Reason reason = Reason::kField) {
    v1::ReadRequest message;
    message.set_run("run");
    for (int i = 0; i < 5; ++i) message.add_samples()->set_sample("s");
    change(message);
    ExpectRejected(message, ParseRequest, field, reason);
  };
  reject("run", [](v1::ReadRequest& m) { m.clear_run(); });
  reject("producer", [](v1::ReadRequest& m) { m.set_producer(static_cast<v1::Producer>(9)); });
  reject("layers", [](v1::ReadRequest& m) { m.add_layers(3), m.add_layers(3); });
  reject("layers", [](v1::ReadRequest& m) { m.add_layers(kMaxLayers); });
  reject("samples[2].sample", [](v1::ReadRequest& m) { m.mutable_samples(2)->set_sample("a b"); });
  reject("samples[3].row_bounds", [](v1::ReadRequest& m) { m.mutable_samples(3)->add_row_bounds(1); });
  reject("samples[4].row_bounds", [](v1::ReadRequest& m) {
    for (const uint64_t bound : {1, 5, 5, 6}) m.mutable_samples(4)->add_row_bounds(bound);
  });
  reject("samples[0].row_bounds", [](v1::ReadRequest& m) {
    for (const uint64_t bound : {5, 5}) m.mutable_samples(0)->add_row_bounds(bound);
  });
  reject("samples[0].row_bounds", [](v1::ReadRequest& m) {
    for (const uint64_t bound : {uint64_t{0}, ~uint64_t{0}}) m.mutable_samples(0)->add_row_bounds(bound);
  });
  reject(
      "samples",
      [](v1::ReadRequest& m) {
        while (m.samples_size() <= static_cast<int>(kMaxReadSamples)) m.add_samples();
      },
      Reason::kLength);
  reject("samples[1].num_tokens", [](v1::ReadRequest& m) { m.mutable_samples(1)->set_num_tokens(~uint64_t{0}); });
  reject("samples[1].token_checks[0].rows",
         [](v1::ReadRequest& m) { m.mutable_samples(1)->add_token_checks()->set_rows(~uint64_t{0}); });
}

TEST(ReadMessageTest, TokenChecksAreBounded) {
  v1::ReadRequest message;
  message.set_run("run");
  const auto with_checks = [&](int sample, size_t checks) {
    while (message.samples_size() <= sample) message.add_samples();
    while (message.samples(sample).token_checks_size() < static_cast<int>(checks)) {
      message.mutable_samples(sample)->add_token_checks();
    }
  };
  with_checks(0, kMaxSampleTokenChecks);
  std::string bytes = message.SerializeAsString();
  EXPECT_OK(ParseReadRequest(AsChain(bytes)));
  with_checks(0, kMaxSampleTokenChecks + 1);
  ExpectRejected(message, ParseRequest, "samples[0].token_checks", Reason::kLength);
  message.clear_samples();
  for (int i = 0; i < 8; ++i) with_checks(i, kMaxReadTokenChecks / 8 + (i == 7 ? 1 : 0));
  ExpectRejected(message, ParseRequest, "samples", Reason::kLength);
}

// The admitted memory covers what the request takes, and `admit` is called before anything is built.
TEST(ReadMessageTest, MemoryIsAdmittedBeforeItIsTaken) {
  v1::ReadRequest message;
  message.set_run("run");
  for (int i = 0; i < 1000; ++i) message.add_samples();
  for (const uint64_t bound : {1, 5, 7, 8}) message.mutable_samples(0)->add_row_bounds(bound);
  message.mutable_samples(1)->add_token_checks();
  message.mutable_samples(2)->set_sample(std::string(100, 's'));
  const std::string bytes = message.SerializeAsString();
  int64_t asked = 0;
  EXPECT_OK(ParseReadRequest(AsChain(bytes), [&](int64_t memory) {
    asked = memory;
    return absl::OkStatus();
  }));
  EXPECT_GE(asked, static_cast<int64_t>(1000 * sizeof(SampleRead) + 2 * sizeof(RowRange) + sizeof(TokenCheck) + 100));
  message.add_samples()->set_sample("not a name");  // This would be rejected if the request were parsed.
  const std::string bad = message.SerializeAsString();
  EXPECT_EQ(ParseReadRequest(AsChain(bad), [](int64_t) { return absl::ResourceExhaustedError("full"); }).status(),
            absl::ResourceExhaustedError("full"));
}

TEST(ReadMessageTest, ResponseRejectionsNameTheField) {
  const auto reject = [](const std::string& field, Reason reason,
                         const std::function<void(v1::ReadResponse&)>& change) {
    v1::ReadResponse message;
    message.add_records()->set_status(v1::SampleRecord::OK);
    v1::Piece& piece = *message.add_pieces();
    piece.set_layer_count(2);
    piece.set_rows(3);
    piece.set_codec(v1::CODEC_RAW);
    piece.set_bytes(4);
    piece.add_cut_crc32c(1);
    piece.add_cut_crc32c(2);
    message.set_payload("abcd");
    change(message);
    ExpectRejected(message, ParseReadResponse, field, reason);
  };
  reject("payload", Reason::kLength, [](v1::ReadResponse& m) { m.set_payload("abc"); });
  reject("payload", Reason::kLength, [](v1::ReadResponse& m) { m.mutable_pieces(0)->set_bytes(0xFFFFFFFFu); });
  reject("pieces[0].cut_crc32c", Reason::kField, [](v1::ReadResponse& m) { m.mutable_pieces(0)->add_cut_crc32c(3); });
  reject("pieces[0].codec", Reason::kField, [](v1::ReadResponse& m) { m.mutable_pieces(0)->clear_codec(); });
  reject("pieces[0].bit_offset", Reason::kField, [](v1::ReadResponse& m) { m.mutable_pieces(0)->set_bit_offset(8); });
  reject("pieces[0].bit_offset", Reason::kField, [](v1::ReadResponse& m) { m.mutable_pieces(0)->set_bit_offset(1); });
  reject("pieces[0].rows", Reason::kField, [](v1::ReadResponse& m) { m.mutable_pieces(0)->clear_rows(); });
  reject("records[0].unrecorded", Reason::kField, [](v1::ReadResponse& m) { m.mutable_records(0)->add_unrecorded(); });
}

TEST(ReadMessageTest, AStatusOfALaterVersionIsNotOk) {
  v1::ReadResponse message;
  message.add_records()->set_status(static_cast<v1::SampleRecord::SampleStatus>(77));
  const std::string bytes = message.SerializeAsString();
  Random random(3);
  ASSERT_OK_AND_ASSIGN(const ReadResponse response, ParseReadResponse(RandomChain(random, bytes)));
  EXPECT_EQ(response.records.at(0).status, SampleStatus::kUnspecified);
}

}  // namespace
}  // namespace routing_replay
