// Headers as NumPy writes them, other spellings of the same dict, and hostile ones.
#include "proto/wire/payload/npy.h"

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// A file of version 1.0 whose header is `dict`, padded with spaces and a line feed to a multiple of `align`.
std::string File(const std::string& dict, size_t align = 64) {
  std::string text = dict;
  while ((10 + text.size() + 1) % align != 0) text += ' ';
  text += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(text.size() & 255);
  file += static_cast<char>(text.size() >> 8);
  return file + text;
}

std::string Dict(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

// NumPy 1.23 and later leaves room for a first axis of 21 digits.
std::string NewNumpyFile(const std::string& descr, const std::string& shape) {
  const size_t first_digits = shape.find(',') - 1;
  return File(Dict(descr, shape) + std::string(21 - first_digits, ' '));
}

absl::StatusOr<NpyHeader> Parse(absl::string_view file) {
  // A copy of just this size, so that a read past its end is seen by ASan.
  return ParseNpyHeader(std::vector<uint8_t>(file.begin(), file.end()));
}

auto Rejects(Reason reason) { return Fails(absl::StatusCode::kInvalidArgument, reason); }

TEST(NpyTest, HeadersOfNumpy) {
  const struct {
    const char* descr;
    DType dtype;
  } kTypes[] = {{"|u1", DType::kU8},  {"|i1", DType::kI8},  {"<u2", DType::kU16},
                {"<i2", DType::kI16}, {"<i4", DType::kI32}, {"<i8", DType::kI64}};
  const std::vector<std::pair<std::string, std::vector<int64_t>>> shapes = {
      {"(1, 4, 8)", {1, 4, 8}},           {"(22, 61, 8)", {22, 61, 8}}, {"(0, 61, 8)", {0, 61, 8}},
      {"(262143, 4, 8)", {262143, 4, 8}}, {"(3, 2)", {3, 2}},           {"(5,)", {5}}};
  for (const auto& type : kTypes) {
    for (const auto& [text, shape] : shapes) {
      const std::string file = NewNumpyFile(type.descr, text);
      EXPECT_EQ(file.size(), 128u) << text;
      ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(file + "elements"));
      EXPECT_EQ(header.dtype, type.dtype);
      EXPECT_EQ(header.shape, shape);
      EXPECT_EQ(header.data_offset, 128u);
    }
  }
}

TEST(NpyTest, OlderWritersPadDifferently) {
  for (const size_t align : {1, 16, 64}) {
    const std::string file = File(Dict("<i4", "(7, 4, 8)"), align);
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(file));
    EXPECT_EQ(header.shape, (std::vector<int64_t>{7, 4, 8}));
    EXPECT_EQ(header.data_offset, file.size());
  }
}

TEST(NpyTest, OtherSpellingsOfTheDict) {
  for (const char* dict : {
           "{\"descr\": \"<i4\", \"fortran_order\": False, \"shape\": (7, 4, 8)}",
           "{'shape': (7, 4, 8), 'fortran_order': False, 'descr': '<i4'}",
           "{'descr':'<i4','fortran_order':False,'shape':(7,4,8,),}",
           "  { 'descr' : '<i4' , 'fortran_order' : False , 'shape' : ( 7 , 4 , 8 ) , }  ",
       }) {
    ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(File(dict)));
    EXPECT_EQ(header.dtype, DType::kI32);
    EXPECT_EQ(header.shape, (std::vector<int64_t>{7, 4, 8})) << dict;
  }
}

TEST(NpyTest, ScalarsHaveNoAxes) {
  ASSERT_OK_AND_ASSIGN(const NpyHeader header, Parse(File(Dict("|u1", "()"))));
  EXPECT_TRUE(header.shape.empty());
}

TEST(NpyTest, OtherDTypesAreRejected) {
  for (const char* descr : {"<f4", "<f8", ">i4", ">u2", "|O", "|b1", "<u4", "<u8", "|S8", "<U4", "", "<i4 ", "i4"}) {
    EXPECT_THAT(Parse(File(Dict(descr, "(1, 2, 3)"))), Rejects(Reason::kDType)) << descr;
  }
}

TEST(NpyTest, FortranOrderAndManyAxesAreRejected) {
  EXPECT_THAT(Parse(File("{'descr': '<i4', 'fortran_order': True, 'shape': (1, 2, 3), }")), Rejects(Reason::kShape));
  EXPECT_OK(Parse(File(Dict("<i4", "(1, 2, 3, 4)"))));
  std::string shape = "(1, 2, 3, 4";
  for (int axes = 5; axes < 100; ++axes) {
    shape += ", 1";
    EXPECT_THAT(Parse(File(Dict("<i4", shape + ")"))), Rejects(Reason::kShape)) << axes;
  }
}

TEST(NpyTest, MalformedHeadersAreRejected) {
  for (const char* dict : {
           "",
           "{}",
           "{",
           "}",
           "[]",
           "{'descr': '<i4', 'fortran_order': False}",
           "{'descr': '<i4', 'shape': (1, 2, 3)}",
           "{'fortran_order': False, 'shape': (1, 2, 3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3), 'more': (1,)}",
           "{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3)}",
           "{'descr': '<i4', 'fortran_order': 0, 'shape': (1, 2, 3)}",
           "{'descr': '<i4', 'fortran_order': Falsey, 'shape': (1, 2, 3)}",
           "{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1, 2, 3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': [1, 2, 3]}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, -2, 3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2 3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, , 3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 0x3)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3.0)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 9223372036854775808)}",
           "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 3)} {}",
           "{'descr': '<i4' 'fortran_order': False, 'shape': (1, 2, 3)}",
           "{'descr': '<i4, 'fortran_order': False, 'shape': (1, 2, 3)}",
           "{descr: '<i4', 'fortran_order': False, 'shape': (1, 2, 3)}",
       }) {
    const absl::Status status = Parse(File(dict)).status();
    EXPECT_THAT(status, Rejects(Reason::kEncoding)) << dict;
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail{}).field, "payload");
  }
}

TEST(NpyTest, OtherVersionsAndLongHeadersAreRejected) {
  const std::string good = File(Dict("<i4", "(1, 2, 3)"));
  for (const char version : {0, 2, 3}) {
    std::string file = good;
    file[6] = version;
    EXPECT_THAT(Parse(file), Rejects(Reason::kEncoding));
  }
  const std::string dict = Dict("<i4", "(1, 2, 3)");
  EXPECT_OK(Parse(File(dict + std::string(1023 - dict.size(), ' '), 1)));
  EXPECT_THAT(Parse(File(dict + std::string(1024 - dict.size(), ' '), 1)), Rejects(Reason::kEncoding));
}

TEST(NpyTest, CutOffAtAnyLengthIsRejected) {
  const std::string file = NewNumpyFile("<i4", "(22, 61, 8)");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_THAT(Parse(file.substr(0, size)), Rejects(Reason::kEncoding)) << size;
  }
}

// Changes each byte of a header to every other value. ParseNpyHeader may then return another header or an error, but it
// must never crash or return a negative axis.
TEST(NpyTest, AnyByteChangedIsAnAnswer) {
  const std::string file = NewNumpyFile("<i4", "(22, 61, 8)");
  for (size_t place = 0; place < file.size(); ++place) {
    for (int c = 0; c < 256; ++c) {
      std::string changed = file;
      changed[place] = static_cast<char>(c);
      const auto header = Parse(changed);
      if (!header.ok()) {
        EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      EXPECT_LE(header->data_offset, file.size());
      for (const int64_t axis : header->shape) EXPECT_GE(axis, 0);
    }
  }
}

}  // namespace
}  // namespace routing_replay
