#include "server/operations/log/grpc_lines.h"

#include <grpc/support/log.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "server/operations/log/event_log.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(GrpcLinesTest, OneOfManyComesInTheFormOfTheLog) {
  std::ostringstream out;
  StartLogging(LogFormat::kJson, &out);
  LogGrpcLines();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // As grpc_init() does.
  for (int i = 0; i < 100; ++i) gpr_log("src/core/place.cc", 7, GPR_LOG_SEVERITY_ERROR, "a \"line\"\nof %d", i);
  gpr_log("src/core/place.cc", 8, GPR_LOG_SEVERITY_ERROR, "another place");
  StartLogging(LogFormat::kText);
  std::istringstream lines(out.str());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["event"], "grpc");
  EXPECT_EQ(first["level"], "warning");
  EXPECT_EQ(first["message"], "a \"line\"\nof 0");
  EXPECT_EQ(first["place"], "place.cc:7");
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["place"], "place.cc:8");
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

}  // namespace
}  // namespace routing_replay::testing
