// A server in this process and its clients.
#ifndef TESTS_INTEGRATION_FIXTURE_H_
#define TESTS_INTEGRATION_FIXTURE_H_

#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "routing_replay/client.h"
#include "server/server.h"
#include "tests/support/random_routes.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_certificates.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

inline constexpr std::chrono::seconds kCallTimeout(60);
// Tests need this name because inside a test class `Run` means the member function ::testing::Test::Run.
using RunHandle = std::shared_ptr<Run>;

class ServerTest : public ::testing::Test {
 protected:
  void StartServer(ServerConfig config = {}) {
    config.listen = {"127.0.0.1:0"};
    if (std::getenv("RR_TEST_TLS") != nullptr) UseTls(config);
    auto server = Server::Start(std::move(config));
    ASSERT_OK(server);
    server_ = *std::move(server);
    client_ = NewClient();
  }

  std::unique_ptr<Client> NewClient() {
    auto client = Client::Connect({.endpoint = server_->advertised()});
    EXPECT_OK(client);
    return *std::move(client);
  }

  RunHandle OpenRun(const std::string& name, const Geometry& geometry, const RunSettings& settings = {}) {
    auto run = client_->OpenRun(name, geometry, settings);
    EXPECT_OK(run);
    return *std::move(run);
  }

  // Makes the server, and all clients that are created later, use TLS.
  void UseTls(ServerConfig& config) {
    const auto made = MakeTestCertificates(certificates_.path(), kLocalNames);
    ASSERT_OK(made);
    config.tls = {.certificate = made->cert_file, .key = made->key_file};
    std::ifstream file(made->ca_file);
    authority_.assign(std::istreambuf_iterator<char>(file), {});
    setenv("ROUTING_REPLAY_CACERT", made->ca_file.c_str(), /*overwrite=*/1);
  }

  const ScratchDirectory certificates_;
  std::string authority_;  // PEM of the server's CA certificate; empty: no TLS.
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

// Describes a [rows][MoE layers][K] int32 tensor of a geometry with one K.
inline TensorDescription Int32Tensor(const Geometry& geometry, int64_t rows) {
  return {.dtype = DType::kI32,
          .shape = {rows, geometry.num_moe_layers(), geometry.layer(0).top_k},
          .layer_basis = LayerBasis::kMoeLayers};
}

// Puts the rows `range` of `routes` in one call.
inline absl::StatusOr<AppendOutcome> PutRows(Run& run, const RandomRoutes& routes, RowRange range,
                                             AppendOptions options) {
  options.row_start = range.begin;
  const std::vector<int32_t> tensor = routes.Tensor(range);
  return run.Put(options, Int32Tensor(run.geometry(), range.size()), AsBytes(tensor));
}

// Reads a whole sample and expects `routes` in all recorded rows.
inline void ExpectRows(Run& run, const std::string& sample, const RandomRoutes& routes,
                       const std::vector<RowRange>& recorded) {
  auto read = run.ReadRows({.samples = {{.sample = sample}}}, kCallTimeout);
  ASSERT_OK(read);
  ASSERT_EQ((*read)[0].record.status, SampleStatus::kOk) << (*read)[0].record.message;
  EXPECT_EQ((*read)[0].rows, recorded);
  for (int32_t i = 0; i < run.geometry().num_moe_layers(); ++i) {
    EXPECT_EQ((*read)[0].layers[i], routes.Slice(i, recorded)) << "layer ordinal " << i;
  }
}

}  // namespace routing_replay::testing

#endif  // TESTS_INTEGRATION_FIXTURE_H_
