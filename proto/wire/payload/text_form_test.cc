#include "proto/wire/payload/text_form.h"

#include "proto/json/engine_json.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

TEST(Nrlre1Test, HeadAndData) {
  const std::string text = "nrlre1:int16:3x2x4:CAAX:AA0";
  ASSERT_OK_AND_ASSIGN(const TextForm form, OpenNrlre1(AsBytes(text)));
  EXPECT_EQ(form.tensor.encoding, Encoding::kBase64);
  EXPECT_EQ(form.tensor.dtype, DType::kI16);
  EXPECT_EQ(form.tensor.shape, (std::vector<int64_t>{3, 2, 4}));
  EXPECT_EQ(form.data, AsBytes(text).subspan(19));
  EXPECT_TRUE(OpenNrlre1(AsBytes("nrlre1:int8:0x2x2:"))->data.empty());
}

TEST(Nrlre1Test, OtherTexts) {
  const std::string long_head = "nrlre1:int8:" + std::string(200, '0') + "1x1x1:AA==";
  for (const std::string& text : {std::string(), std::string("nrlre1"), std::string("nrlre1:int8:1x1x1"), long_head,
                                  std::string("NRLRE1:int8:1x1x1:AA=="), std::string("nrlre2:int8:1x1x1:AA==")}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(text)), Fails(kInvalid, Reason::kEncoding)) << text;
  }
  for (const char* dtype : {"uint8", "int64", "float32", "", "int8 "}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(std::string("nrlre1:") + dtype + ":1x1x1:AA==")), Fails(kInvalid, Reason::kDType));
  }
  for (const char* shape : {"1x1", "1x1x1x1", "", "-1x1x1", "+1x1x1", " 1x1x1", "1xx1", "1x1x1 ",
                            "0x1x99999999999999999999", "1X1x1", "0x10x"}) {
    EXPECT_THAT(OpenNrlre1(AsBytes(std::string("nrlre1:int8:") + shape + ":AA==")), Fails(kInvalid, Reason::kShape));
  }
}

TEST(Base85Test, AsPythonWritesIt) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes.push_back(static_cast<char>(i));
  // base64.b85encode(bytes(range(n))) of Python.
  const char* kTexts[] = {"",        "00",       "009",       "009C",       "009C6",
                          "009C61O", "009C61O)", "009C61O)~", "009C61O)~M", "009C61O)~M2m"};
  for (size_t n = 0; n < 10; ++n) {
    ASSERT_OK_AND_ASSIGN(const Buffer decoded, DecodeBase85(AsBytes(kTexts[n])));
    EXPECT_EQ(decoded.span(), AsBytes(bytes).first(n)) << n;
  }
  for (const char* bad : {"0", "009C60", "00 ", "00\"9C", "~~~~~", "|NsC1"}) {
    EXPECT_THAT(DecodeBase85(AsBytes(bad)), Fails(kInvalid, Reason::kEncoding)) << bad;
  }
  EXPECT_EQ(DecodeBase85(AsBytes("|NsC0"))->span(), AsBytes("\xff\xff\xff\xff"));
}

TEST(ObjectFormTest, Dialects) {
  const auto open = [](ObjectDialect dialect, const char* text) { return ObjectFormFromJson(dialect, text); };
  const auto prime = open(ObjectDialect::kPrimeRl, R"({"shape": [5, 4, 8], "start": 3})");
  ASSERT_OK(prime);
  EXPECT_EQ(prime->start, 3);
  EXPECT_EQ(prime->tensor.dtype, DType::kU8);
  EXPECT_EQ(prime->tensor.shape, (std::vector<int64_t>{5, 4, 8}));
  EXPECT_EQ(open(ObjectDialect::kPrimeRl, "[5, 4, 8]")->tensor.shape, (std::vector<int64_t>{5, 4, 8}));
  EXPECT_THAT(open(ObjectDialect::kAny, R"({"shape": [5, 4, 8]})"), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(open(ObjectDialect::kAny, "[5, 4, 8]"), Fails(kInvalid, Reason::kDType));
  EXPECT_EQ(open(ObjectDialect::kAny, R"({"shape": [5, 4, 8], "dtype": "int64", "more": 1})")->tensor.dtype,
            DType::kI64);
  EXPECT_THAT(open(ObjectDialect::kSkyRl, R"({"shape": [5, 4, 8], "dtype": "uint16"})"),
              Fails(kInvalid, Reason::kDType));
  EXPECT_OK(open(ObjectDialect::kSkyRl, R"({"shape": [5, 4, 8], "dtype": "int16"})"));
  EXPECT_THAT(open(ObjectDialect::kMsSwift, R"({"shape": [5, 4, 8], "dtype": "uint8"})"),
              Fails(kInvalid, Reason::kField));
  EXPECT_OK(open(ObjectDialect::kMsSwift, R"({"shape": [5, 4, 8], "dtype": "uint16", "__ndarray__": true})"));
  for (const char* shape :
       {"[5, 4]", "[5, true, 4]", "[5.0, 2, 2]", "[-1, 2, 2]", "\"5x4x8\"", "null", "[4194305, 1, 1]"}) {
    const std::string text = std::string(R"({"dtype": "uint8", "shape": )") + shape + "}";
    EXPECT_THAT(open(ObjectDialect::kAny, text.c_str()), Fails(kInvalid, Reason::kShape)) << shape;
  }
  for (const char* start : {"-1", "\"3\"", "1.5", "true", "4194305"}) {
    const std::string text = std::string(R"({"dtype": "uint8", "shape": [1, 1, 1], "start": )") + start + "}";
    EXPECT_THAT(open(ObjectDialect::kAny, text.c_str()), Fails(kInvalid, Reason::kField)) << start;
  }
  for (const char* text : {"", "3", "null", "\"a\"", "{"}) {
    EXPECT_THAT(open(ObjectDialect::kPrimeRl, text), Fails(kInvalid, Reason::kField)) << text;
  }
}

TEST(NarrowestDTypeTest, FollowsTheLargestId) {
  const auto check = [](DType dtype, const std::vector<int32_t>& ids) {
    std::string bytes;
    const int size = dtype == DType::kU8 ? 1 : dtype == DType::kI16 ? 2 : 4;
    for (const int32_t id : ids) bytes.append(reinterpret_cast<const char*>(&id), size);
    return CheckNarrowestDType({.dtype = dtype,
                                .rows = 1,
                                .layers = 1,
                                .top_k = static_cast<int64_t>(ids.size()),
                                .elements = AsBytes(bytes)});
  };
  EXPECT_OK(check(DType::kU8, {0, 255}));
  EXPECT_OK(check(DType::kU8, {}));
  EXPECT_OK(check(DType::kI16, {0, 256}));
  EXPECT_OK(check(DType::kI32, {32768}));
  EXPECT_THAT(check(DType::kI16, {255}), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(check(DType::kI32, {32767}), Fails(kInvalid, Reason::kDType));
  EXPECT_THAT(check(DType::kI16, {300, -1}), Fails(kInvalid, Reason::kIdRange));
}

}  // namespace
}  // namespace routing_replay
