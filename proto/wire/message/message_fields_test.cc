#include "proto/wire/message/message_fields.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

TEST(ConvertTest, GeometrySurvives) {
  const Geometry uniform = Geometry::Uniform(48, 128, 8);
  EXPECT_EQ(ToProto(uniform).num_experts_size(), 1);
  ASSERT_OK_AND_ASSIGN(const Geometry back, FromProto(ToProto(uniform)));
  EXPECT_EQ(back, uniform);

  ASSERT_OK_AND_ASSIGN(
      const Geometry mixed,
      Geometry::Create(
          {.num_layers = 5, .moe_layer_ids = {1, 2, 4}, .num_experts = {64, 300, 64}, .top_k = {4, 8, 1}}));
  ASSERT_OK_AND_ASSIGN(const Geometry mixed_back, FromProto(ToProto(mixed)));
  EXPECT_EQ(mixed_back, mixed);
  EXPECT_EQ(mixed_back.fingerprint(), mixed.fingerprint());
}

TEST(ConvertTest, BadGeometriesAreRejected) {
  const auto reject = [](auto change) {
    v1::RoutingGeometry geometry = ToProto(Geometry::Uniform(4, 8, 2));
    change(geometry);
    return FromProto(geometry).status();
  };
  using G = v1::RoutingGeometry;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(reject([](G& g) { g.set_num_layers(0xFFFFFFFFu); }), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(reject([](G& g) { g.set_moe_layer_ids(1, 0x80000000u); }), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(reject([](G& g) { g.set_num_experts(0, 0xFFFFFFFFu); }), Fails(kInvalid, Reason::kField));
  EXPECT_THAT(reject([](G& g) { g.set_top_k(0, 0x80000001u); }), Fails(kInvalid, Reason::kField));
}

TEST(ConvertTest, SampleStateSurvives) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    SampleState state{.sample = absl::StrCat("s/", i),
                      .handle = static_cast<int64_t>(random() >> 1),
                      .producer = random() % 2 ? Producer::kRollout : Producer::kTrainer,
                      .group = static_cast<int64_t>(random()),
                      .committed_rows = static_cast<int64_t>(random() % 1000),
                      .revision = static_cast<int64_t>(random() % 5),
                      .content_id = random(),
                      .unrecorded = {{1, 2}, {5, 9}},
                      .weights = {{{0, 4}, -1, "a"}, {{4, 9}, 7, ""}},
                      .stored_bytes = static_cast<int64_t>(random() >> 1),
                      .engine = "engine 1",
                      .idle_ms = 12};
    if (random() % 2) state.num_tokens = state.committed_rows + 1;
    if (random() % 2) state.token_check = TokenCheck{state.committed_rows, static_cast<uint32_t>(random())};
    const v1::SampleState message = ToProto(state);
    ASSERT_OK_AND_ASSIGN(const SampleState back, FromProto(message));
    EXPECT_EQ(ToProto(back).SerializeAsString(), message.SerializeAsString());
    EXPECT_EQ(back.num_tokens, state.num_tokens);
    EXPECT_EQ(back.token_check, state.token_check);
  }
}

TEST(ConvertTest, UnknownEnumsAndHugeNumbersAreRejected) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto status_of = [](auto read) {
    MessageFields f;
    read(f);
    return f.status();
  };
  EXPECT_THAT(status_of([](auto& f) { f.ReadProducer("producer", static_cast<v1::Producer>(3)); }),
              Fails(kInvalid, Reason::kField));
  EXPECT_THAT(status_of([](auto& f) { f.ReadAnyCodec("codec", static_cast<v1::Codec>(77)); }),
              Fails(kInvalid, Reason::kField));
  MessageFields f;
  EXPECT_EQ(f.ReadProducer("producer", v1::PRODUCER_UNSPECIFIED), Producer::kRollout);
  EXPECT_EQ(f.ReadAnyCodec("codec", v1::CODEC_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(f.ReadAnyCodec("codec", ToProto(std::optional<Codec>(Codec::kPacked))), Codec::kPacked);
  EXPECT_OK(f.status());
  v1::RowRange range;
  range.set_begin(3);
  range.set_end(2);
  EXPECT_THAT(status_of([&](auto& f) { f.Range("rows", std::nullopt, range); }), Fails(kInvalid, Reason::kField));
  range.set_end(~uint64_t{0});
  EXPECT_THAT(status_of([&](auto& f) { f.Range("rows", std::nullopt, range); }), Fails(kInvalid, Reason::kField));
  v1::SampleState state;
  state.set_revision(~uint64_t{0});
  EXPECT_THAT(FromProto(state), Fails(kInvalid, Reason::kField));
}

}  // namespace
}  // namespace routing_replay
