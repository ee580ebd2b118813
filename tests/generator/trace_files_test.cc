#include "tests/generator/trace_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/generator/statistics.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

class TraceFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "trace_files_test";
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
  }
  // [3, 2, 2]
  static std::string Npy(const std::string& data) {
    const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 2, 2), }\n";
    std::string file("\x93NUMPY\x01\x00", 8);
    file.push_back(static_cast<char>(header.size()));
    file.push_back('\0');
    return file.append(header).append(data);
  }

  std::string directory_;
};

constexpr char kIndex[] = R"({"m": {"shape": [3, 2, 2], "seq_lens": [2, 1], "experts": 200, "topk": 2}})";

TEST_F(TraceFilesTest, CutsSequences) {
  Write("index.json", kIndex);
  Write("m.npy", Npy("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\xC7"));
  ASSERT_OK_AND_ASSIGN(const auto traces, ReadTraceDirectory(directory_));
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0].name, "m");
  ASSERT_EQ(traces[0].sequences.size(), 2u);
  const Routes& last = traces[0].sequences[1];
  EXPECT_EQ(last.rows, 1);
  EXPECT_EQ(last.num_experts, 200);
  EXPECT_THAT(last.at(0, 0), ::testing::ElementsAre(9, 10));
  EXPECT_THAT(last.at(0, 1), ::testing::ElementsAre(11, 199));
  EXPECT_THAT(traces[0].sequences[0].at(1, 0), ::testing::ElementsAre(5, 6));
}

TEST_F(TraceFilesTest, RejectsWhatDoesNotFit) {
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kNotFound);
  Write("index.json", "[]");
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  Write("index.json", kIndex);
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kNotFound);
  Write("m.npy", Npy("too short"));
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  Write("m.npy", "not numpy at all");
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  Write("m.npy", Npy("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0A\x0B\xC7"));
  Write("index.json", R"({"m": {"shape": [3, 2, 2], "seq_lens": [4, -1], "experts": 200, "topk": 2}})");
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kInvalidArgument);
  Write("index.json", R"({"m": {"shape": [3, 2, 2]}})");
  EXPECT_EQ(ReadTraceDirectory(directory_).status().code(), absl::StatusCode::kInvalidArgument);
}

// The published statistics of recorded traces. RR_TRACES names their directory.
TEST(RecordedTraces, HaveTheirKnownStatistics) {
  const char* directory = std::getenv("RR_TRACES");
  if (directory == nullptr) GTEST_SKIP() << "RR_TRACES names no directory of recorded traces";
  ASSERT_OK_AND_ASSIGN(const auto traces, ReadTraceDirectory(directory));
  int checked = 0;
  for (const RoutingTrace& trace : traces) {
    if (trace.name == "gptoss20b_e32k4") {
      EXPECT_NEAR(MeanEntropy(trace.sequences), .924, .001);
      EXPECT_NEAR(LagOverlap(trace.sequences, 1), .442, .001);
      EXPECT_NEAR(LagOverlap(trace.sequences, 8), .357, .001);
      ++checked;
    } else if (trace.name == "kimilinear_e256k8") {
      EXPECT_NEAR(MeanEntropy(trace.sequences), .828, .001);
      EXPECT_NEAR(LagOverlap(trace.sequences, 1), .336, .001);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 2);
}

}  // namespace
}  // namespace routing_replay::testing
