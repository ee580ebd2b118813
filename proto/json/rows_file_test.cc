#include "proto/json/rows_file.h"

#include <cstring>
#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Span<const uint8_t> AsBytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string File(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

constexpr char kHeader[] =
    R"({"__metadata__": {"format": "pt"}, "weights": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},)"
    R"( "routed_experts": {"dtype": "I16", "shape": [3, 2, 1], "data_offsets": [0, 12]}})";

TEST(SafeTensorsTest, FindsRows) {
  const std::string data = "abcdefghijklmnopqrst";
  const std::string file = File(kHeader, data);
  for (const char* name : {"", "routed_experts"}) {
    ASSERT_OK_AND_ASSIGN(const RowsFile rows, OpenRowsFile(AsBytes(file), name));
    EXPECT_EQ(rows.tensor.encoding, Encoding::kRaw);
    EXPECT_EQ(rows.tensor.dtype, DType::kI16);
    EXPECT_EQ(rows.tensor.shape, (std::vector<int64_t>{3, 2, 1}));
    EXPECT_EQ(rows.payload, AsBytes(data).first(12));
  }
  EXPECT_THAT(OpenRowsFile(AsBytes(file), "weights"), Fails(kInvalid, Reason::kShape));
  const absl::Status missing = OpenRowsFile(AsBytes(file), "rows").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("routed_experts I16[3, 2, 1]"));
  const std::string none = File("{}", "");
  EXPECT_EQ(OpenRowsFile(AsBytes(none)).status().code(), absl::StatusCode::kNotFound);
}

TEST(SafeTensorsTest, OtherFiles) {
  const auto parse = [](const std::string& header, size_t data) {
    return ParseSafeTensors(AsBytes(File(header, std::string(data, 'x'))));
  };
  EXPECT_OK(parse(R"({"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}})", 1));
  for (const char* header : {"", "[]", "{", R"({"a": 1})", R"({"a": {"dtype": "U8", "shape": [2]}})",
                             R"({"a": {"dtype": "U8", "shape": [-2], "data_offsets": [0, 2]}})",
                             R"({"a": {"dtype": "U8", "shape": [2.0], "data_offsets": [0, 2]}})",
                             R"({"a": {"dtype": 3, "shape": [2], "data_offsets": [0, 2]}})",
                             R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2, 2]}})"}) {
    EXPECT_THAT(parse(header, 2), Fails(kInvalid, Reason::kEncoding)) << header;
  }
  for (const char* header : {R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 3]}})",
                             R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 0]}})",
                             R"({"a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 2]}})",
                             R"({"a": {"dtype": "I64", "shape": [4611686018427387904, 4], "data_offsets": [0, 2]}})"}) {
    EXPECT_THAT(parse(header, 2), Fails(kInvalid, Reason::kLength)) << header;
  }
  std::string file = File(kHeader, "abcdefghijklmnopqrst");
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseSafeTensors(AsBytes(file.substr(0, size))).status())) << size;
  }
  std::memset(file.data(), 0xff, 8);
  EXPECT_THAT(ParseSafeTensors(AsBytes(file)), Fails(kInvalid, Reason::kEncoding));
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string broken = File(kHeader, "abcdefghijklmnopqrst");
    broken[8 + random() % (broken.size() - 8)] = static_cast<char>(random());
    const auto rows = OpenRowsFile(AsBytes(broken));
    if (rows.ok()) {
      EXPECT_EQ(rows->payload.size() % 2, 0u);
    }
  }
}

TEST(RowsFileTest, Npy) {
  std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 2, 1), }";
  header.resize(117, ' ');
  const std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\nabcdefghijkl";
  ASSERT_OK_AND_ASSIGN(const RowsFile rows, OpenRowsFile(AsBytes(file)));
  EXPECT_EQ(rows.tensor.dtype, DType::kU16);
  EXPECT_EQ(rows.tensor.shape, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_EQ(rows.payload, AsBytes("abcdefghijkl"));
}

TEST(TraceSequencesTest, CoverTheFile) {
  const char* index = R"({"a": {"seq_lens": [3, 0, 4], "experts": 8}, "b": {"seq_lens": [1]}})";
  EXPECT_EQ(*TraceSequences(index, "a", 7), (std::vector<RowRange>{{0, 3}, {3, 3}, {3, 7}}));
  EXPECT_EQ(*TraceSequences(R"({"seq_lens": [2, 5]})", "x", 7), (std::vector<RowRange>{{0, 2}, {2, 7}}));
  EXPECT_EQ(TraceSequences(index, "c", 7).status().code(), absl::StatusCode::kNotFound);
  for (const int64_t rows : {0, 6, 8}) {
    EXPECT_THAT(TraceSequences(index, "a", rows), Fails(kInvalid, Reason::kRowCount));
  }
  for (const char* bad : {"", "[]", R"({"a": 3})", R"({"a": {"seq_lens": [-1]}})", R"({"seq_lens": "3"})"}) {
    EXPECT_THAT(TraceSequences(bad, "a", 7), Fails(kInvalid, Reason::kField)) << bad;
  }
  EXPECT_THAT(TraceSequences(R"({"seq_lens": [9223372036854775807, 2]})", "a", 7), Fails(kInvalid, Reason::kRowCount));
}

}  // namespace
}  // namespace routing_replay
