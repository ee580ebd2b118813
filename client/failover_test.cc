// A client of several servers over one store.
#include <array>
#include <map>

#include "absl/strings/str_join.h"
#include "client/testing/client_fixture.h"

namespace routing_replay::testing {
namespace {

constexpr int kAll = 1 << 20;

class FailoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& service : services_) service = std::make_unique<FakeService>(store_);
    client_ = NewClient();
    ASSERT_OK_AND_ASSIGN(run_, client_->OpenRun("run", ModelGeometry()));
  }
  std::unique_ptr<Client> NewClient() {
    std::vector<std::string> members;
    for (const auto& service : services_) members.push_back(service->endpoint());
    auto client = Client::Connect({.endpoint = absl::StrJoin(members, ","), .call_timeout = kLong});
    EXPECT_OK(client);
    return *std::move(client);
  }
  absl::Status Put(const std::string& sample, const std::vector<uint8_t>& ids) {
    return run_->Put({.sample = sample}, Tensor(ids), ids).status();
  }
  static TensorDescription Tensor(const std::vector<uint8_t>& ids) {
    return {
        .dtype = DType::kU8, .shape = {static_cast<int64_t>(ids.size()), 1, 1}, .layer_basis = LayerBasis::kMoeLayers};
  }
  // The server that the client uses now.
  FakeService& Present() {
    std::map<FakeService*, int> calls;
    for (const auto& service : services_) calls[service.get()] = service->Calls("Stat");
    run_->Stat("any").status().IgnoreError();
    for (const auto& [service, before] : calls) {
      if (service->Calls("Stat") > before) return *service;
    }
    ADD_FAILURE() << "nobody answers";
    return *services_[0];
  }
  int CallsOfAll(const std::string& method) {
    int calls = 0;
    for (const auto& service : services_) calls += service->Calls(method);
    return calls;
  }

  const std::shared_ptr<FakeStore> store_ = std::make_shared<FakeStore>();
  std::array<std::unique_ptr<FakeService>, 3> services_;
  std::unique_ptr<Client> client_;
  std::shared_ptr<routing_replay::Run> run_;
  std::mt19937_64 random_{1};
};

TEST_F(FailoverTest, ClientsSpread) {
  for (int i = 0; i < 60; ++i) ASSERT_OK(NewClient()->OpenRun("run", ModelGeometry()));
  for (const auto& service : services_) EXPECT_GT(service->Calls("OpenRun"), 5);
}

TEST_F(FailoverTest, CallsGoOnWithTheNextServerAndStayThere) {
  FakeService& first = Present();
  first.FailNext(kAll);
  ASSERT_OK(Put("a", ModelIds(random_, 10)));
  FakeService& second = Present();
  EXPECT_NE(&second, &first);
  first.FailNext(0);
  const int before = first.Calls("Stat");
  for (int i = 0; i < 5; ++i) EXPECT_OK(run_->Stat("a"));
  EXPECT_EQ(first.Calls("Stat"), before);
  // Stops the servers except the first. Destroying a service waits until its server has stopped.
  for (auto& service : services_) {
    if (service.get() != &first) service.reset();
  }
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Stat("a"));
  EXPECT_EQ(state.committed_rows, 10);
}

TEST_F(FailoverTest, ACallThatMustNotBeRepeatedFindsALivingServer) {
  ASSERT_OK(Put("a", ModelIds(random_, 10)));
  FakeService& first = Present();
  for (auto& service : services_) {
    if (service.get() == &first) service.reset();
  }
  ASSERT_OK_AND_ASSIGN(const SampleState state, run_->Truncate("a", Producer::kRollout, 5, {}));
  EXPECT_EQ(state.revision, 1);
  // A Truncate that fails is not sent again, not even to another server.
  for (auto& service : services_) {
    if (service) service->FailNext(1);
  }
  run_->Truncate("a", Producer::kRollout, 5, {}).status().IgnoreError();
  int calls = 0;
  for (auto& service : services_) calls += service ? service->Calls("Truncate") : 0;
  EXPECT_LE(calls, 2);
}

TEST_F(FailoverTest, AnAppenderGoesOnWhereTheLastServerCommitted) {
  std::mt19937_64 seeds(2);
  for (const auto& service : services_) {
    service->OnAppend([faults = std::mt19937_64(seeds())](const AppendRequest&) mutable {
      const auto dice = faults() % 10;
      return dice == 0 ? Do::kLoseMessage : dice == 1 ? Do::kLoseAnswer : Do::kAnswer;
    });
  }
  const auto appender = run_->NewAppender();
  std::map<std::string, std::vector<uint8_t>> samples;
  for (int s = 0; s < 4; ++s) {
    const std::string name = absl::StrCat("s", s);
    std::vector<uint8_t>& ids = samples[name] = ModelIds(random_, 400);
    const std::vector<uint32_t> tokens = MakeTokens(401, random_());
    for (int64_t begin = 0; begin < 400; begin += 20) {
      const std::vector<uint8_t> part(ids.begin() + begin, ids.begin() + begin + 20);
      AppendOptions options{.sample = name, .row_start = begin};
      if (s % 2) options.token_ids = tokens;
      ASSERT_OK(appender->Append(options, Tensor(part), part));
    }
  }
  EXPECT_OK(appender->Flush(kLong));
  EXPECT_GT(appender->metrics().reconnects, 2);
  EXPECT_EQ(appender->metrics().conflicting_rows, 0);
  int used = 0;
  for (const auto& service : services_) used += service->Calls("Append") > 0;
  EXPECT_EQ(used, 3);
  for (const auto& [name, ids] : samples) {
    const ModelSample stored = services_[0]->Sample(name);
    ASSERT_EQ(stored.rows.size(), ids.size()) << name;
    for (size_t row = 0; row < ids.size(); ++row) ASSERT_EQ(stored.rows[row].id, ids[row]) << name << " row " << row;
  }
}

TEST_F(FailoverTest, AReadGoesOnWithWhatIsMissing) {
  std::map<std::string, std::vector<uint8_t>> samples;
  ReadRequest request;
  for (int s = 0; s < 5; ++s) {
    const std::string name = absl::StrCat("s", s);
    samples[name] = ModelIds(random_, 200);
    ASSERT_OK(Put(name, samples[name]));
    request.samples.push_back({.sample = name});
  }
  const auto expect_all = [&] {
    const auto read = run_->ReadRows(request, kLong);
    ASSERT_OK(read);
    ASSERT_EQ(read->size(), 5u);
    for (int s = 0; s < 5; ++s) {
      const std::vector<uint8_t>& ids = samples[absl::StrCat("s", s)];
      EXPECT_EQ((*read)[s].layers[0], std::vector<uint16_t>(ids.begin(), ids.end()));
    }
  };
  // The first read fails before its first message, and the next server answers it. The second read breaks off in the
  // middle, once on each of the three servers, so that its fourth try succeeds.
  Present().FailNext(1);
  expect_all();
  for (const auto& service : services_) service->BreakNextReads(1);
  const int before = CallsOfAll("Read");
  expect_all();
  EXPECT_EQ(CallsOfAll("Read") - before, 4);
}

TEST_F(FailoverTest, ASampleThatChangedBetweenTwoServersIsReadAsItIsNow) {
  ASSERT_OK(Put("a", ModelIds(random_, 10)));
  ASSERT_OK(Put("b", ModelIds(random_, 10)));
  // FakeService breaks a read off only between samples. To make a sample that was read in part, remove the rows and
  // leave its record.
  for (const auto& service : services_) {
    service->OnRead([](v1::ReadResponse& response) {
      response.clear_pieces();
      response.clear_payload();
      return true;
    });
  }
  FakeService& first = Present();
  first.BreakNextReads(1);
  for (const auto& service : services_) {
    if (service.get() == &first) continue;
    service->OnRead([](v1::ReadResponse& response) {
      response.mutable_records(0)->set_revision(1);
      return true;
    });
  }
  ASSERT_OK_AND_ASSIGN(const auto read, run_->ReadRows({.samples = {{.sample = "a"}, {.sample = "b"}}}, kLong));
  EXPECT_EQ(read[0].record.revision, 1);
  EXPECT_EQ(read[0].layers[0].size(), 10u);
}

TEST_F(FailoverTest, NobodyIsThere) {
  for (auto& service : services_) service.reset();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(run_->ReadRows({.samples = {{.sample = "a"}}}, std::chrono::milliseconds(300)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

// gRPC resolves the name; here it has one address.
TEST_F(FailoverTest, ANameOfServers) {
  const std::string endpoint = services_[0]->endpoint();
  const std::string port = endpoint.substr(endpoint.find(':') + 1);
  ASSERT_OK_AND_ASSIGN(const auto client,
                       Client::Connect({.endpoint = "dns:///localhost:" + port, .call_timeout = kLong}));
  ASSERT_OK_AND_ASSIGN(const auto run, client->OpenRun("run", ModelGeometry()));
  const std::vector<uint8_t> ids = ModelIds(random_, 100);
  ASSERT_OK(run->Put({.sample = "a"}, Tensor(ids), ids));
  services_[0]->BreakNextReads(2);
  ASSERT_OK_AND_ASSIGN(const auto read, run->ReadRows({.samples = {{.sample = "a"}, {.sample = "a"}}}, kLong));
  EXPECT_EQ(read[1].layers[0], std::vector<uint16_t>(ids.begin(), ids.end()));
  EXPECT_EQ(run->Truncate("a", Producer::kRollout, 5, {})->revision, 1);
}

}  // namespace
}  // namespace routing_replay::testing
