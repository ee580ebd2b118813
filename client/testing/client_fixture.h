// A fake server and a run of it.
#ifndef CLIENT_TESTING_CLIENT_FIXTURE_H_
#define CLIENT_TESTING_CLIENT_FIXTURE_H_

#include <memory>
#include <random>
#include <vector>

#include "client/testing/fake_service.h"
#include "routing_replay/client.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

// Longer than any wait in a test that passes.
inline constexpr std::chrono::seconds kLong(60);

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto client = Client::Connect({.endpoint = service_.endpoint()});
    ASSERT_OK(client);
    client_ = *std::move(client);
    auto run = client_->OpenRun("run", ModelGeometry());
    ASSERT_OK(run);
    run_ = *std::move(run);
  }

  // Rows [range) of `ids` as a u8 tensor.
  static TensorDescription Tensor(RowRange range) {
    return {.dtype = DType::kU8, .shape = {range.size(), 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  }
  static absl::Span<const uint8_t> Bytes(const std::vector<uint8_t>& ids, RowRange range) {
    return absl::MakeConstSpan(ids).subspan(range.begin, range.size());
  }

  void ExpectStored(const std::string& name, const std::vector<uint8_t>& ids) {
    const ModelSample sample = service_.Sample(name);
    ASSERT_EQ(sample.rows.size(), ids.size()) << name;
    for (size_t row = 0; row < ids.size(); ++row) ASSERT_EQ(sample.rows[row].id, ids[row]) << name << " row " << row;
  }

  FakeService service_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<routing_replay::Run> run_;
};

}  // namespace routing_replay::testing

#endif  // CLIENT_TESTING_CLIENT_FIXTURE_H_
