// Tests the C functions as a C program uses them, against a fake server.
#include "routing_replay/c_api.h"

#include <cstring>
#include <fstream>
#include <thread>

#include "client/c_api/calls.h"
#include "client/c_api/testing/c_api_fixture.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;

TEST_F(CApiTest, ARunDescribesItselfAndOutlivesItsClient) {
  rr_object_free(std::exchange(c_client_, nullptr));
  const rr_run_info* info = nullptr;
  ASSERT_DONE(rr_run_describe(c_run_, &info));
  EXPECT_EQ(String(info->name), "run");
  EXPECT_EQ(info->geometry.count, 1U);
  EXPECT_EQ(info->geometry.num_experts[0], 256);
  EXPECT_EQ(info->settings.block_rows, 64);
  EXPECT_EQ(String(info->settings.codec), "RAW");
  rr_free(info);
  rr_free(nullptr);
}

TEST_F(CApiTest, ErrorsTellWhatTheirStatusTells) {
  const rr_client_options options{.endpoint = Text("nowhere"), .call_timeout_ms = -1};
  rr_client* client = nullptr;
  const rr_error* error = rr_client_new(&options, &client);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(client, nullptr);
  EXPECT_EQ(error->code, static_cast<int32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(String(error->code_name), "INVALID_ARGUMENT");
  EXPECT_EQ(String(error->reason), "FIELD");
  EXPECT_EQ(String(error->field), "endpoint");
  EXPECT_EQ(error->row.present, 0);
  rr_free(error);

  const rr_sample_states* states = nullptr;
  EXPECT_EQ(Failure(rr_run_stat(c_run_, nullptr, 0, 3, &kBlocking, &states)).field, "producer");
}

TEST_F(CApiTest, StatesComeAsTheyAre) {
  PutRows("a", {1, 2, 3});
  const rr_text names[] = {Text("a"), Text("b")};
  const rr_sample_states* states = nullptr;
  ASSERT_DONE(rr_run_stat(c_run_, names, 2, 0, &kBlocking, &states));
  ASSERT_EQ(states->count, 1U);
  EXPECT_EQ(String(states->data[0].sample), "a");
  EXPECT_EQ(states->data[0].committed_rows, 3);
  EXPECT_EQ(states->data[0].num_tokens.value, 4);
  EXPECT_EQ(states->data[0].producer, RR_ROLLOUT);
  rr_free(states);
  ASSERT_DONE(rr_run_truncate(c_run_, Text("a"), RR_ROLLOUT, 2, {}, &kBlocking, &states));
  EXPECT_EQ(states->data[0].committed_rows, 2);
  EXPECT_EQ(states->data[0].num_tokens.present, 0);
  rr_free(states);
  ASSERT_DONE(rr_run_list(c_run_, nullptr, 0, &kBlocking, &states));
  EXPECT_EQ(states->count, 1U);
  rr_free(states);
}

TEST_F(CApiTest, ReleaseTakesIdsAndHandles) {
  for (const char* name : {"a", "b", "c"}) PutRows(name, {1});
  const rr_text names[] = {Text("a")};
  int64_t handles[] = {0, 0};
  ASSERT_DONE(rr_sample_handle(c_run_, Text("b"), &handles[1]));
  rr_released released{};
  ASSERT_DONE(rr_run_release(c_run_, names, 1, handles, 2, nullptr, 0, &kBlocking, &released));
  EXPECT_EQ(released.samples, 2);
  EXPECT_TRUE(service_.Sample("b").rows.empty());
  EXPECT_EQ(service_.Sample("c").rows.size(), 1U);
  ASSERT_DONE(rr_run_release(c_run_, nullptr, 0, handles, 1, nullptr, 0, &kBlocking, &released));
  EXPECT_EQ(released.samples, 0);
}

TEST_F(CApiTest, PutsRowsAndMarks) {
  const uint8_t ids[] = {5, 6, 7};
  const int64_t shape[] = {3, 1, 1}, tokens[] = {10, 11, 12};
  const rr_range take{1, 3}, marks{2, 6};
  const rr_tensor rows{.data = ids,
                       .size = 3,
                       .encoding = Text("RAW"),
                       .dtype = Text("U8"),
                       .layer_basis = Text("MOE_LAYERS"),
                       .shape = shape,
                       .shape_count = 3,
                       .take = &take};
  rr_append append{.sample = Text("a"), .rows = &rows, .group = {4, 1}, .weight_version = -1};
  append.tokens = {.data = tokens, .size = 16, .dtype = Text("int64"), .axes = 1};
  const rr_outcomes* outcome = nullptr;
  ASSERT_DONE(rr_run_put(c_run_, &append, &kBlocking, &outcome));
  ASSERT_EQ(outcome->count, 1U);
  EXPECT_EQ(String(outcome->data[0].sample), "a");
  EXPECT_EQ(outcome->data[0].committed_rows, 2);
  EXPECT_EQ(outcome->data[0].error, nullptr);
  rr_free(outcome);
  append = {.sample = Text("a"), .row_start = 2, .unrecorded = {&marks, 1}, .num_tokens = {7, 1}, .weight_version = -1};
  ASSERT_DONE(rr_run_put(c_run_, &append, &kBlocking, &outcome));
  EXPECT_EQ(outcome->data[0].sealed, 1);
  rr_free(outcome);
  const testing::ModelSample sample = service_.Sample("a");
  ASSERT_EQ(sample.rows.size(), 6U);
  EXPECT_EQ(sample.rows[1].id, 7);
  EXPECT_EQ(sample.rows[1].token, 11U);
  EXPECT_FALSE(sample.rows[2].id.has_value());
  EXPECT_EQ(sample.group, 4);

  append.row_start = 9;
  append.num_tokens = {};
  const Failure gap(rr_run_put(c_run_, &append, &kBlocking, &outcome));
  EXPECT_EQ(gap.field, "append.unrecorded");
  append.rows = &rows;
  append.unrecorded = {};
  EXPECT_EQ(Failure(rr_run_put(c_run_, &append, &kBlocking, &outcome)).reason, "GAP");
}

TEST_F(CApiTest, ReadsRows) {
  const std::vector<uint8_t> ids = testing::ModelIds(random_, 300);
  PutRows("a", ids);
  const rr_sample_read samples[] = {{.sample = Text("a")}, {.sample = Text("nothing")}};
  const rr_read read{.samples = samples, .count = 2};
  const rr_rows* rows = nullptr;
  ASSERT_DONE(rr_run_read(c_run_, &read, &kBlocking, &rows));
  EXPECT_THAT(std::vector(rows->layers, rows->layers + rows->layer_count), ElementsAre(0));
  EXPECT_EQ(rows->top_k, 1);
  EXPECT_EQ(rows->id_bytes, 1);
  ASSERT_EQ(rows->count, 2U);
  EXPECT_EQ(String(rows->samples[0].status), "OK");
  ASSERT_EQ(rows->samples[0].ids_size, ids.size());
  EXPECT_EQ(std::memcmp(rows->samples[0].ids, ids.data(), ids.size()), 0);
  EXPECT_EQ(String(rows->samples[1].status), "NOT_FOUND");
  EXPECT_EQ(rows->samples[1].ids, nullptr);
  rr_free(rows);
}

TEST_F(CApiTest, AQueueTellsEndsUnderTheirTags) {
  PutRows("a", {1, 2, 3});
  TestQueue queue;
  const rr_text name = Text("a");
  const rr_sample_states* states = nullptr;
  rr_run* run = nullptr;
  const rr_call stat = queue.Call(5), join = queue.Call(6);
  ASSERT_DONE(rr_run_stat(c_run_, &name, 1, 0, &stat, &states));
  ASSERT_DONE(rr_client_open_run(c_client_, Text("run"), nullptr, nullptr, {}, 0, &join, &run));
  const auto ends = queue.Wait(2);
  EXPECT_EQ(ends.at(5).message, "");
  EXPECT_EQ(ends.at(6).message, "");
  EXPECT_EQ(states->count, 1U);
  EXPECT_FALSE(queue.Readable(0));
  rr_free(states);
  rr_object_free(run);
  // Wrong arguments are reported at once.
  EXPECT_EQ(Failure(rr_run_stat(c_run_, &name, 1, 9, &stat, &states)).field, "producer");
  EXPECT_FALSE(queue.Readable(0));
}

TEST_F(CApiTest, ACallUnderWayIsCancelled) {
  PutRows("a", {1, 2, 3});
  service_.OnRead([](v1::ReadResponse&) { return false; });
  TestQueue queue;
  const rr_sample_read sample{.sample = Text("a")};
  const rr_read read{.samples = &sample, .count = 1};
  const rr_rows* rows = nullptr;
  const rr_call call = queue.Call(1);
  ASSERT_DONE(rr_run_read(c_run_, &read, &call, &rows));
  EXPECT_EQ(Failure(rr_run_read(c_run_, &read, &call, &rows)).field, "tag");
  while (service_.Calls("Read") == 0) std::this_thread::yield();
  rr_queue_cancel(queue.get(), 77);
  rr_queue_cancel(queue.get(), 1);
  EXPECT_EQ(queue.Wait(1).at(1).code, absl::StatusCode::kCancelled);
  EXPECT_EQ(rows, nullptr);
  rr_queue_cancel(queue.get(), 1);
}

TEST_F(CApiTest, WhichWayStreamsWent) {
  const rr_transports* before = nullptr;
  ASSERT_DONE(rr_client_metrics(c_client_, &before));
  EXPECT_EQ(before->transport.size, 0u);
  rr_free(before);
  PutRows("a", {1, 2, 3});
  const rr_sample_read sample{.sample = Text("a")};
  const rr_read request{.samples = &sample, .count = 1};
  const rr_rows* rows = nullptr;
  ASSERT_DONE(rr_run_read(c_run_, &request, &kBlocking, &rows));
  rr_free(rows);
  const rr_transports* after = nullptr;  // The fake server in this process has only gRPC.
  ASSERT_DONE(rr_client_metrics(c_client_, &after));
  EXPECT_EQ(std::string(after->transport.data, after->transport.size), "grpc");
  EXPECT_GE(after->grpc_streams, 1);
  EXPECT_EQ(after->direct_streams + after->unix_streams + after->shm_streams, 0);
  rr_free(after);
}

TEST_F(CApiTest, RetriesAndWaitsAreCancelled) {
  service_.FailNext(1'000'000);
  TestQueue queue;
  const rr_server_info* info = nullptr;
  rr_run* run = nullptr;
  const rr_call retried = queue.Call(1), waited = queue.Call(2);
  ASSERT_DONE(rr_client_server_info(c_client_, &retried, &info));
  ASSERT_DONE(rr_client_open_run(c_client_, Text("run"), nullptr, nullptr, {}, 3'600'000, &waited, &run));
  while (service_.Calls("GetServerInfo") < 2 || service_.Calls("OpenRun") < 4) std::this_thread::yield();
  rr_queue_cancel(queue.get(), 1);
  rr_queue_cancel(queue.get(), 2);
  const auto ends = queue.Wait(2);
  EXPECT_EQ(ends.at(1).code, absl::StatusCode::kCancelled);
  EXPECT_EQ(ends.at(2).code, absl::StatusCode::kCancelled);
}

TEST_F(CApiTest, AQueueThatIsFreedCancelsWhatIsUnderWay) {
  PutRows("a", {1, 2, 3});
  service_.OnRead([](v1::ReadResponse&) { return false; });
  const rr_sample_read sample{.sample = Text("a")};
  const rr_read read{.samples = &sample, .count = 1};
  const rr_rows* rows = nullptr;
  TestQueue queue;
  for (uint64_t tag = 0; tag < 20; ++tag) {
    const rr_call call = queue.Call(tag);
    ASSERT_DONE(rr_run_read(c_run_, &read, &call, &rows));
  }
}

TEST_F(CApiTest, ATimeoutIsOfTheWholeCall) {
  service_.FailNext(1'000'000);
  const rr_call brief{.timeout_ms = 300};
  const rr_server_info* info = nullptr;
  EXPECT_EQ(Failure(rr_client_server_info(c_client_, &brief, &info)).code, absl::StatusCode::kUnavailable);
  const rr_call none{.timeout_ms = 0};
  EXPECT_EQ(Failure(rr_client_server_info(c_client_, &none, &info)).code, absl::StatusCode::kDeadlineExceeded);
}

TEST_F(CApiTest, ClientsOfOneEndpointShareATransport) {
  const size_t before = service_.Connections();
  rr_client_options options{.endpoint = Text(service_.endpoint()), .tls = -1, .call_timeout_ms = -1};
  for (const int64_t timeout_ms : {-1, 50'000}) {
    options.call_timeout_ms = timeout_ms;
    rr_client* client = nullptr;
    rr_run* run = nullptr;
    ASSERT_DONE(rr_client_new(&options, &client));
    ASSERT_DONE(rr_client_open_run(client, Text("run"), nullptr, nullptr, {}, 0, &kBlocking, &run));
    rr_object_free(run);
    rr_object_free(client);
    // The second client has another timeout than c_client_, so it gets a connection of its own.
    EXPECT_EQ(service_.Connections(), before + (timeout_ms < 0 ? 0 : 1));
  }
}

TEST_F(CApiTest, ACallThatNeedsTheFileOfItsEndpointWaitsForIt) {
  const testing::ScratchDirectory scratch;
  const std::string file = scratch.path() + "/endpoint", endpoint = "file:" + file;
  const rr_client_options options{.endpoint = Text(endpoint), .tls = -1, .call_timeout_ms = -1};
  rr_client* client = nullptr;
  ASSERT_DONE(rr_client_new(&options, &client));
  const rr_server_info* info = nullptr;
  TestQueue queue;
  const rr_call cancelled = queue.Call(1), waiting = queue.Call(2);
  ASSERT_DONE(rr_client_server_info(client, &cancelled, &info));
  rr_queue_cancel(queue.get(), 1);
  EXPECT_EQ(queue.Wait(1).at(1).code, absl::StatusCode::kCancelled);
  ASSERT_DONE(rr_client_server_info(client, &waiting, &info));
  std::ofstream(file) << service_.endpoint() << "\n";
  EXPECT_EQ(queue.Wait(1).at(2).message, "");
  rr_free(info);
  rr_object_free(client);
}

TEST_F(CApiTest, CallsAreCancelledAtAnyMoment) {
  const std::vector<uint8_t> ids = testing::ModelIds(random_, 1000);
  PutRows("a", ids);
  const std::vector<rr_sample_read> samples(50, {.sample = Text("a")});
  const rr_read read{.samples = samples.data(), .count = samples.size()};
  for (int round = 0; round < 20; ++round) {
    constexpr size_t kCalls = 16;
    const rr_rows* rows[kCalls] = {};
    TestQueue queue;
    for (size_t tag = 0; tag < kCalls; ++tag) {
      const rr_call call = queue.Call(tag);
      ASSERT_DONE(rr_run_read(c_run_, &read, &call, &rows[tag]));
    }
    for (size_t i = 0; i < kCalls; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500));
      rr_queue_cancel(queue.get(), random_() % kCalls);
    }
    for (const auto& [tag, end] : queue.Wait(kCalls)) {
      const bool done = end.code == absl::StatusCode::kOk;
      EXPECT_TRUE(done || end.code == absl::StatusCode::kCancelled) << end.message;
      EXPECT_EQ(rows[tag] != nullptr, done);
      if (done) {
        EXPECT_EQ(std::memcmp(rows[tag]->samples[49].ids, ids.data(), ids.size()), 0);
      }
      rr_free(rows[tag]);
    }
  }
}

TEST_F(CApiTest, ARunGoesToADirectoryAndBack) {
  const testing::ScratchDirectory scratch;
  const std::string directory = scratch.path() + "/checkpoint";
  std::map<std::string, std::vector<uint8_t>> ids;
  for (const char* name : {"a", "b", "c"}) PutRows(name, ids[name] = testing::ModelIds(random_, 100));

  const rr_export_options out{.directory = Text(directory)};
  rr_exported exported{};
  ASSERT_DONE(rr_run_export(c_run_, &out, &kBlocking, &exported));
  EXPECT_EQ(exported.samples, 3);
  EXPECT_EQ(exported.written, 3);
  EXPECT_EQ(exported.bytes, 300);

  testing::FakeService other;
  const rr_client_options options{.endpoint = Text(other.endpoint()), .tls = -1, .call_timeout_ms = -1};
  rr_client* client = nullptr;
  ASSERT_DONE(rr_client_new(&options, &client));
  const rr_import_options in{.directory = Text(directory), .run = Text("copy")};
  const rr_imported* imported = nullptr;
  TestQueue queue;
  const rr_call call = queue.Call(1);
  ASSERT_DONE(rr_client_import(client, &in, &call, &imported));
  EXPECT_EQ(queue.Wait(1).at(1).message, "");
  EXPECT_EQ(String(imported->run), "copy");
  EXPECT_EQ(imported->samples, 3);
  rr_free(imported);
  for (const auto& [name, rows] : ids) {
    const testing::ModelSample sample = other.Sample(name);
    ASSERT_EQ(sample.rows.size(), rows.size());
    for (size_t row = 0; row < rows.size(); ++row) EXPECT_EQ(sample.rows[row].id, rows[row]);
    EXPECT_EQ(sample.num_tokens, 101);
  }
  rr_object_free(client);
}

TEST_F(CApiTest, GeometriesAndTokensNeedNoServer) {
  const int32_t layers[] = {1, 3}, experts[] = {64, 300}, top_k[] = {2, 4};
  rr_geometry geometry{4, layers, experts, top_k, 2};
  const rr_geometry_facts* facts = nullptr;
  ASSERT_DONE(rr_geometry_check(&geometry, &facts));
  EXPECT_EQ(facts->max_top_k, 4);
  EXPECT_EQ(facts->id_bytes, 2);
  rr_free(facts);
  geometry.num_layers = 2;
  EXPECT_EQ(Failure(rr_geometry_check(&geometry, &facts)).code, absl::StatusCode::kInvalidArgument);

  const int64_t wide[] = {7, 1LL << 32};
  rr_tokens tokens{.data = wide, .size = 8, .dtype = Text("int64"), .axes = 1};
  const rr_ids* ids = nullptr;
  ASSERT_DONE(rr_token_ids(&tokens, Text("tokens"), Text("a"), &ids));
  ASSERT_EQ(ids->count, 1U);
  EXPECT_EQ(ids->data[0], 7U);
  EXPECT_EQ(rr_token_crc(0, ids->data, 1), TokenCheckExtend(0, {reinterpret_cast<const uint8_t*>(wide), 4}));
  rr_free(ids);
  tokens.size = 16;
  EXPECT_EQ(Failure(rr_token_ids(&tokens, Text("tokens"), Text("a"), &ids)).field, "tokens");
}

}  // namespace
}  // namespace routing_replay::client
