// Lists of many runs.
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "absl/strings/str_cat.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

class RunListTest : public ServerTest {
 protected:
  // A geometry of the largest permitted size.
  static Geometry LargeGeometry() {
    Geometry::Options options{.num_layers = kMaxLayers};
    for (int32_t i = 0; i < kMaxMoeLayers; ++i) {
      options.moe_layer_ids.push_back(kMaxLayers - kMaxMoeLayers + i);
      options.num_experts.push_back(1000 + i % 2);
      options.top_k.push_back(1 + i % 2);
    }
    return *Geometry::Create(options);
  }
  void Start(int runs) {
    StartServer();
    const Geometry geometry = LargeGeometry();
    for (int i = 0; i < runs; ++i) names_.push_back(OpenRun(absl::StrCat("run/", 10000 + i), geometry)->name());
    // A client without the settings of our client library: gRPC's default accepts messages of at most 4 MiB.
    stub_ = v1::RoutingReplay::NewStub(grpc::CreateChannel(server_->advertised(), grpc::InsecureChannelCredentials()));
  }
  v1::ListRunsResponse Page(const v1::ListRunsRequest& request) {
    grpc::ClientContext context;
    v1::ListRunsResponse page;
    const grpc::Status status = stub_->ListRuns(&context, request, &page);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return page;
  }

  std::vector<std::string> names_;
  std::unique_ptr<v1::RoutingReplay::Stub> stub_;
};

TEST_F(RunListTest, EachPageFitsIntoAMessageThatStockClientsTake) {
  Start(1700);
  v1::ListRunsRequest request;
  std::vector<std::string> listed;
  int pages = 0;
  do {
    const v1::ListRunsResponse page = Page(request);
    for (const v1::RunState& run : page.runs()) listed.push_back(run.run());
    request.set_page_token(page.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 2);
  EXPECT_EQ(listed, names_);
  ASSERT_OK_AND_ASSIGN(const std::vector<RunSummary> runs, client_->ListRuns());
  ASSERT_EQ(runs.size(), names_.size());
  EXPECT_EQ(runs.back().run, names_.back());
}

}  // namespace
}  // namespace routing_replay::testing
