// The C API as a C program sees it: only capi.h, linked against the shared library.
#include "routing_replay/capi.h"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/read_message.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample_id.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using nlohmann::json;

constexpr char kRun[] = R"({"run": "r", "server_version": "0.1.0", "block_rows": 32,
                            "geometry": {"num_layers": 2, "num_experts": 16, "top_k": 2}})";

struct Failure {
  int32_t code = 0;
  json detail;
};

// The error's code and JSON; frees it.
Failure Take(rr_error* error) {
  if (error == nullptr) return {};
  Failure failure{rr_error_code(error), json::parse(rr_error_json(error))};
  rr_error_free(error);
  return failure;
}

std::string TakeText(rr_bytes* bytes) {
  std::string text(static_cast<const char*>(rr_bytes_data(bytes)), rr_bytes_size(bytes));
  rr_bytes_free(bytes);
  return text;
}

ByteChain Chain(const std::string& bytes) {
  return ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

std::string TakeMessage(rr_message* message) {
  std::string bytes;
  size_t count = 0;
  const rr_span* parts = rr_message_parts(message, &count);
  for (size_t i = 0; i < count; ++i) bytes.append(static_cast<const char*>(parts[i].data), parts[i].size);
  rr_message_free(message);
  return bytes;
}

class CapiTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(rr_run_new(kRun, strlen(kRun), &run_), nullptr); }
  void TearDown() override { rr_run_free(run_); }

  // Rows whose ids are (row + layer) % 16 and the next one.
  static std::string Rows(int64_t rows) {
    std::string ids;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t layer = 0; layer < 2; ++layer) {
        ids.push_back(static_cast<char>((row + layer) % 16));
        ids.push_back(static_cast<char>((row + layer + 1) % 16));
      }
    }
    return ids;
  }

  rr_error* Plan(const std::string& append, int64_t rows, const std::string& payload, rr_plan** plan) {
    const std::string tensor = json{{"dtype", "U8"}, {"shape", {rows, 2, 2}}}.dump();
    return rr_plan_rows(run_, append.data(), append.size(), tensor.data(), tensor.size(), nullptr, 0, payload.data(),
                        payload.size(), plan);
  }

  rr_run* run_ = nullptr;
};

TEST_F(CapiTest, ErrorsCarryTheirDetail) {
  std::string ids = Rows(40);
  ids[4 * 33 + 2] = 99;
  rr_plan* plan = nullptr;
  const Failure failure = Take(Plan(R"({"sample": "a", "row_start": 7})", 40, ids, &plan));
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(failure.code, 3);
  EXPECT_EQ(failure.detail["reason"], "ID_RANGE");
  EXPECT_EQ(failure.detail["sample"], "a");
  EXPECT_EQ(failure.detail["row"], 40);
  EXPECT_EQ(failure.detail["layer"], 1);
}

TEST_F(CapiTest, BadJsonIsRefused) {
  rr_plan* plan = nullptr;
  for (const char* append : {"", "{", "[]", "{}", R"({"sample": 1})", R"({"sample": "a", "sampel": "b"})",
                             R"({"sample": "a", "unrecorded": [[1]]})", R"({"sample": "a", "unrecorded": 1})",
                             R"({"sample": "a", "producer": "nobody"})", R"({"sample": "a", "prefix": {}})"}) {
    const Failure failure = Take(Plan(append, 1, Rows(1), &plan));
    EXPECT_EQ(failure.code, 3) << append;
    EXPECT_EQ(failure.detail["reason"], "FIELD") << append;
  }
  EXPECT_EQ(plan, nullptr);
  rr_run* run = nullptr;
  const std::string newer = R"({"run": "r", "server_version": "7.0.0",
                                "geometry": {"num_layers": 2, "num_experts": 16, "top_k": 2}})";
  EXPECT_EQ(Take(rr_run_new(newer.data(), newer.size(), &run)).detail["reason"], "VERSION_MISMATCH");
  for (const int codec : {-1, 3, 99}) {
    const std::string unknown =
        json{{"run", "r"}, {"server_version", "0.9.0"}, {"codec", codec}, {"geometry", json::parse(kRun)["geometry"]}}
            .dump();
    const Failure failure = Take(rr_run_new(unknown.data(), unknown.size(), &run));
    EXPECT_EQ(failure.code, 9) << codec;
    EXPECT_EQ(failure.detail["reason"], "VERSION_MISMATCH");
    EXPECT_EQ(failure.detail["server_version"], "0.9.0");
  }
  EXPECT_EQ(run, nullptr);
  rr_reader* reader = nullptr;
  const std::string none = R"({"layers": [], "samples": []})";
  EXPECT_EQ(Take(rr_reader_new(run_, none.data(), none.size(), &reader)).detail["field"], "layers");
  const std::string dense = R"({"layers": [5], "samples": []})";
  EXPECT_EQ(Take(rr_reader_new(run_, dense.data(), dense.size(), &reader)).detail["layer"], 5);
}

TEST_F(CapiTest, SomeRowsOfATensor) {
  const std::string append = R"({"sample": "a", "row_start": 5})";
  const std::string rows = Rows(40);
  const auto put = [&](const char* take, bool encode, rr_plan** plan) {
    json tensor = {{"dtype", "U8"}, {"shape", {40, 2, 2}}};
    tensor["take"] = json::parse(take);
    const std::string text = tensor.dump();
    return (encode ? rr_plan_rows : rr_plan_tensor)(run_, append.data(), append.size(), text.data(), text.size(),
                                                    nullptr, 0, rows.data(), rows.size(), plan);
  };
  for (const bool encode : {true, false}) {
    rr_plan* plan = nullptr;
    ASSERT_EQ(put("[10, 12]", encode, &plan), nullptr);
    rr_message* message = nullptr;
    ASSERT_EQ(rr_put_message(run_, plan, &message), nullptr);
    const std::string bytes = TakeMessage(message);
    ASSERT_OK_AND_ASSIGN(const AppendRequest request, ParseAppendRequest(Chain(bytes)));
    EXPECT_EQ(request.append->rows, (RowRange{5, 7}));
    EXPECT_EQ(request.payload.size(), encode ? 4u : 8u);  // PACKED: half a byte per id.
    rr_plan_free(plan);
    for (const char* take : {"[1]", "[30, 41]", "[3, 2]", "[-1, 2]", "3"}) {
      const Failure failure = Take(put(take, encode, &plan));
      EXPECT_EQ(failure.detail["reason"], "FIELD") << take;
      EXPECT_EQ(failure.detail["field"], "append.tensor.take") << take;
    }
  }
}

// A trajectory of the C API, as a client of it would drive it.
class TrajectoryCapi {
 public:
  explicit TrajectoryCapi(rr_run* run, const std::string& description = R"({"sample": "a", "engine": "x"})")
      : run_(run) {
    EXPECT_EQ(rr_trajectory_new(description.data(), description.size(), &object_), nullptr);
  }
  ~TrajectoryCapi() { rr_trajectory_free(object_); }

  rr_error* Turn(const std::string& turn, const std::vector<uint32_t>& tokens, int64_t slots, const std::string& rows,
                 json* decision) {
    const std::string tensor = json{{"dtype", "U8"}, {"shape", {slots, 2, 2}}}.dump();
    rr_bytes* bytes = nullptr;
    rr_error* error =
        rr_trajectory_turn(object_, run_, turn.data(), turn.size(), tokens.data(), tokens.size(), tensor.data(),
                           slots == 0 ? 0 : tensor.size(), rows.data(), rows.size(), &bytes);
    if (error == nullptr) *decision = json::parse(TakeText(bytes));
    return error;
  }
  json State() const {
    rr_bytes* bytes = nullptr;
    EXPECT_EQ(rr_trajectory_state(object_, &bytes), nullptr);
    return json::parse(TakeText(bytes));
  }
  rr_trajectory* object() { return object_; }

 private:
  rr_run* const run_;
  rr_trajectory* object_ = nullptr;
};

TEST_F(CapiTest, ATrajectory) {
  TrajectoryCapi trajectory(run_);
  const std::vector<uint32_t> tokens = {5, 6, 7, 8, 9, 10};
  json decision;
  ASSERT_EQ(trajectory.Turn(R"({"tokens_start": 0, "weights": [[0, 2, 3, ""], [2, 6, 4, "four"]]})", tokens, 6, Rows(6),
                            &decision),
            nullptr);
  EXPECT_EQ(decision["step"], "append");
  EXPECT_EQ(decision["appends"], json::parse("[[0, 5]]"));
  EXPECT_EQ(decision["surplus_rows"], 1);
  rr_plan* plan = nullptr;
  ASSERT_EQ(rr_trajectory_take_plan(trajectory.object(), &plan), nullptr);
  EXPECT_EQ(rr_plan_pieces(plan), 2u);
  rr_plan_free(plan);
  EXPECT_EQ(Take(rr_trajectory_take_plan(trajectory.object(), &plan)).code, 3);

  EXPECT_EQ(rr_trajectory_next_row(trajectory.object(), tokens.data(), 3), 3);
  EXPECT_EQ(
      Take(trajectory.Turn(R"({"row_start": 6, "tokens_start": 6})", {1, 2}, 1, Rows(1), &decision)).detail["reason"],
      "GAP");
  ASSERT_EQ(trajectory.Turn(R"({"cut": 3, "seal": true})", {}, 0, "", &decision), nullptr);
  EXPECT_EQ(decision["step"], "truncate");
  EXPECT_EQ(decision["truncate_rows"], 2);
  const std::string truncated = R"([{"sample": "a", "committed_rows": 2, "revision": 1}])";
  ASSERT_EQ(rr_trajectory_on_truncated(trajectory.object(), truncated.data(), truncated.size()), nullptr);
  const std::string failed = R"({"sequence": 1, "error": {"code": 14}})";
  ASSERT_EQ(rr_trajectory_on_outcome(trajectory.object(), failed.data(), failed.size()), nullptr);
  ASSERT_EQ(trajectory.Turn(R"({"cut": 3, "seal": true})", {}, 0, "", &decision), nullptr);
  EXPECT_EQ(decision["step"], "ask");
  ASSERT_EQ(rr_trajectory_on_state(trajectory.object(), truncated.data(), truncated.size()), nullptr);
  ASSERT_EQ(trajectory.Turn(R"({"cut": 3, "seal": true})", {}, 0, "", &decision), nullptr);
  EXPECT_EQ(decision["appends"], json::parse("[[2, 2]]"));
  const json state = trajectory.State();
  EXPECT_EQ(state["num_tokens"], 3);
  EXPECT_EQ(state["rows"], 2);
  EXPECT_EQ(state["sealed"], true);
  EXPECT_EQ(state["counters"]["failed_appends"], 1);
}

TEST_F(CapiTest, BadTurnsAreRefused) {
  TrajectoryCapi trajectory(run_);
  json decision;
  for (const char* turn : {"", "[]", R"({"outcome": "gone"})", R"({"tokens": 1})", R"({"weights": [[1, 2]]})",
                           R"({"cut": 0})", R"({"row_start": -1})", R"({"missing_rows": -1})", R"({"tokens_start": 9})",
                           R"({"tokens_start": 0, "weights": [[2, 3, 1, ""], [0, 1, 1, ""]]})"}) {
    EXPECT_EQ(Take(trajectory.Turn(turn, {1, 2}, 1, Rows(1), &decision)).code, 3) << turn;
  }
  rr_trajectory* made = nullptr;
  for (const std::string description : {"", "{}", R"({"sample": "a b"})", R"({"sample": "a", "existing": "maybe"})"}) {
    EXPECT_EQ(Take(rr_trajectory_new(description.data(), description.size(), &made)).code, 3) << description;
  }
  EXPECT_EQ(Take(rr_trajectory_fork(trajectory.object(), "", 0, &made)).code, 3);
  EXPECT_EQ(made, nullptr);
  const auto refused = [&](const std::string& states) {
    return Take(rr_trajectory_on_state(trajectory.object(), states.data(), states.size())).code;
  };
  EXPECT_EQ(refused(R"([{"sample": "a"}, {"sample": "b"}])"), 3);
  EXPECT_EQ(refused(R"([{"sample": "a", "committed_rows": -1}])"), 3);
  EXPECT_EQ(refused(R"([{"sample": "a", "committed_rows": 3, "unrecorded": [[2, 5]]}])"), 3);
  EXPECT_EQ(Take(rr_trajectory_on_dropped(trajectory.object(), 3, 2)).code, 3);
  EXPECT_EQ(trajectory.State()["rows"], 0);
}

TEST_F(CapiTest, RpcErrors) {
  ErrorDetail detail{.reason = Reason::kGap};
  detail.committed_rows = 12;
  const std::string details = EncodeRpcStatus(MakeError(absl::StatusCode::kFailedPrecondition, "gap", detail));
  Failure failure = Take(rr_error_from_rpc(9, "gap", 3, details.data(), details.size()));
  EXPECT_EQ(failure.code, 9);
  EXPECT_EQ(failure.detail["committed_rows"], 12);
  failure = Take(rr_error_from_rpc(14, nullptr, 0, nullptr, 0));
  EXPECT_EQ(failure.detail["code_name"], "UNAVAILABLE");
  EXPECT_EQ(Take(rr_error_from_rpc(0, "", 0, nullptr, 0)).code, 2);
}

TEST_F(CapiTest, AnAppendFromPlanToOutcome) {
  const std::string options = R"({"run": "r", "max_queued_bytes": 10000, "append_timeout_ms": 1000})";
  rr_appender* appender = nullptr;
  ASSERT_EQ(rr_appender_new(options.data(), options.size(), &appender), nullptr);
  rr_plan* plan = nullptr;
  const std::string rows = Rows(40);
  ASSERT_EQ(Plan(R"({"sample": "a", "seal_num_tokens": 41})", 40, rows, &plan), nullptr);
  EXPECT_GE(rr_plan_bytes(plan), 80);
  EXPECT_EQ(rr_appender_has_room(appender, rr_plan_bytes(plan)), 1);
  uint64_t sequence = 0;
  ASSERT_EQ(rr_appender_add(appender, plan, 1000, &sequence), nullptr);
  rr_plan_free(plan);
  EXPECT_EQ(sequence, 1u);
  EXPECT_EQ(rr_appender_newest_open(appender), 1u);

  rr_action action{};
  ASSERT_EQ(rr_appender_next(appender, 1000, 0, &action), nullptr);
  EXPECT_EQ(action.step, RR_CONNECT);
  ASSERT_EQ(rr_appender_next(appender, 1000, 1, &action), nullptr);
  ASSERT_EQ(action.step, RR_SEND);
  std::string sent = TakeMessage(action.message);
  const uint64_t wanted = ParseAppendRequest(Chain(sent))->want_bytes;
  EXPECT_EQ(wanted, 80u);  // PACKED, 4 bits per id.
  const std::string credit = EncodeAppendResponse({.credit = Credit{.granted_bytes = wanted}});
  ASSERT_EQ(rr_appender_on_message(appender, credit.data(), credit.size(), 1000), nullptr);
  ASSERT_EQ(rr_appender_next(appender, 1000, 1, &action), nullptr);
  ASSERT_EQ(action.step, RR_SEND);
  sent = TakeMessage(action.message);
  const auto request = ParseAppendRequest(Chain(sent));
  ASSERT_OK(request);
  EXPECT_EQ(request->payload.size(), 80u);
  const AppendAck ack{.append_id = request->append->append_id, .sample = "a", .committed_rows = 40, .sealed = true};
  const std::string answer = EncodeAppendResponse({.ack = ack});
  ASSERT_EQ(rr_appender_on_message(appender, answer.data(), answer.size(), 1000), nullptr);

  EXPECT_EQ(rr_appender_has_finished(appender), 1);
  rr_bytes* finished = nullptr;
  ASSERT_EQ(rr_appender_take_finished(appender, &finished), nullptr);
  const json outcomes = json::parse(TakeText(finished));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0]["sequence"], 1);
  EXPECT_EQ(outcomes[0]["committed_rows"], 40);
  EXPECT_FALSE(outcomes[0].contains("error"));
  EXPECT_EQ(rr_appender_settled(appender, 1), 0);
  rr_appender_delivered(appender);
  EXPECT_EQ(rr_appender_settled(appender, 1), 1);
  EXPECT_EQ(rr_appender_take_error(appender), nullptr);
  rr_appender_free(appender);
}

TEST_F(CapiTest, AnAppendThatIsNotAnswered) {
  const std::string options = R"({"run": "r", "max_queued_bytes": 10, "append_timeout_ms": 1})";
  rr_appender* appender = nullptr;
  ASSERT_EQ(rr_appender_new(options.data(), options.size(), &appender), nullptr);
  rr_plan* plan = nullptr;
  const std::string rows = Rows(40);
  ASSERT_EQ(Plan(R"({"sample": "a"})", 40, rows, &plan), nullptr);
  uint64_t sequence = 0;
  ASSERT_EQ(rr_appender_add(appender, plan, 0, &sequence), nullptr);
  rr_plan_free(plan);
  EXPECT_EQ(rr_appender_has_room(appender, 1), 0);
  EXPECT_EQ(Take(rr_appender_no_room(appender, "b", 1)).detail["reason"], "OVER_BUDGET");
  rr_error* down = rr_error_from_rpc(14, "down", 4, nullptr, 0);
  rr_action action{};
  ASSERT_EQ(rr_appender_next(appender, 0, 0, &action), nullptr);
  rr_appender_on_stream_end(appender, down, 0);
  ASSERT_EQ(rr_appender_next(appender, 1000000, 0, &action), nullptr);
  EXPECT_EQ(action.step, RR_WAIT);
  EXPECT_EQ(Take(rr_appender_not_flushed(appender)).code, 4);
  rr_bytes* finished = nullptr;
  ASSERT_EQ(rr_appender_take_finished(appender, &finished), nullptr);
  EXPECT_EQ(json::parse(TakeText(finished))[0]["error"]["code_name"], "UNAVAILABLE");
  rr_appender_delivered(appender);
  EXPECT_EQ(Take(rr_appender_take_error(appender)).code, 14);
  rr_retry* retry = nullptr;
  ASSERT_EQ(rr_retry_new(std::numeric_limits<int64_t>::max(), &retry), nullptr);
  EXPECT_GT(rr_retry_wait(retry, down, 0), 0);
  rr_retry_free(retry);
  rr_error_free(down);
  rr_appender_free(appender);
}

TEST_F(CapiTest, ARead) {
  const std::string asked = R"({"layers": [1], "samples": [{"sample": "a"}, {"sample": "b", "rows": [[0, 2]]}]})";
  rr_reader* reader = nullptr;
  ASSERT_EQ(rr_reader_new(run_, asked.data(), asked.size(), &reader), nullptr);
  rr_bytes* bytes = nullptr;
  ASSERT_EQ(rr_reader_request(reader, &bytes), nullptr);
  const std::string request = TakeText(bytes);
  EXPECT_EQ(ParseReadRequest(Chain(request))->run, "r");

  const std::vector<SampleRecord> records = {
      {.index = 0, .status = SampleStatus::kOk, .committed_rows = 3, .num_tokens = 4},
      {.index = 1, .status = SampleStatus::kNotFound, .message = "no"}};
  const std::vector<uint8_t> ids = {1, 2, 2, 3, 3, 4};
  const std::vector<Piece> pieces = {
      {.layer_count = 1, .rows = {0, 3}, .codec = Codec::kRaw, .bytes = 6, .cut_crc32c = {Crc32c(ids)}}};
  std::string message = EncodeReadResponse(records, pieces, ids.size());
  message.append(ids.begin(), ids.end());
  std::string damaged = message;
  damaged.back() = 9;
  ASSERT_EQ(rr_reader_push(reader, message.data(), message.size()), nullptr);
  ASSERT_EQ(rr_reader_end(reader), nullptr);
  ASSERT_EQ(rr_reader_result(reader, &bytes), nullptr);
  const json result = json::parse(TakeText(bytes));
  EXPECT_EQ(result["layers"], json::array({1}));
  EXPECT_EQ(result["samples"][0]["rows"], (json{{0, 3}}));
  EXPECT_EQ(result["samples"][1]["status"], "NOT_FOUND");
  ASSERT_EQ(rr_reader_take_ids(reader, 0, &bytes), nullptr);
  EXPECT_EQ(TakeText(bytes), std::string(ids.begin(), ids.end()));
  EXPECT_EQ(Take(rr_reader_take_ids(reader, 2, &bytes)).code, 11);
  EXPECT_EQ(Take(rr_reader_take_ids(reader, 0, &bytes)).code, 9);  // Twice.
  EXPECT_EQ(Take(rr_reader_push(reader, message.data(), message.size())).code, 9);
  rr_reader_free(reader);

  ASSERT_EQ(rr_reader_new(run_, asked.data(), asked.size(), &reader), nullptr);
  const Failure failure = Take(rr_reader_push(reader, damaged.data(), damaged.size()));
  EXPECT_EQ(failure.code, 15);
  EXPECT_EQ(failure.detail["sample"], "a");
  EXPECT_EQ(failure.detail["layer"], 1);
  EXPECT_EQ(Take(rr_reader_push(reader, message.data(), message.size())).code, 15);
  EXPECT_EQ(Take(rr_reader_end(reader)).code, 15);
  EXPECT_EQ(Take(rr_reader_result(reader, &bytes)).code, 9);
  EXPECT_EQ(Take(rr_reader_take_ids(reader, 0, &bytes)).code, 9);
  rr_reader_free(reader);
}

TEST_F(CapiTest, APlanIsUsedUpByAnAppender) {
  const std::string options = R"({"run": "r", "max_queued_bytes": 10000, "append_timeout_ms": 9223372036854775807})";
  rr_appender* appender = nullptr;
  ASSERT_EQ(rr_appender_new(options.data(), options.size(), &appender), nullptr);
  rr_plan* plan = nullptr;
  const std::string rows = Rows(4);
  ASSERT_EQ(Plan(R"({"sample": "a"})", 4, rows, &plan), nullptr);
  uint64_t sequence = 0;
  rr_message* message = nullptr;
  ASSERT_EQ(rr_appender_add_dropped(appender, plan, 1000, &sequence), nullptr);  // Takes nothing of it.
  ASSERT_EQ(rr_appender_add(appender, plan, 1000, &sequence), nullptr);
  EXPECT_EQ(Take(rr_appender_add(appender, plan, 1000, &sequence)).detail["field"], "plan");
  EXPECT_EQ(Take(rr_appender_add_dropped(appender, plan, 1000, &sequence)).detail["field"], "plan");
  EXPECT_EQ(Take(rr_put_message(run_, plan, &message)).detail["field"], "plan");
  EXPECT_EQ(sequence, 2u);
  rr_plan_free(plan);

  // A timeout that means "for ever" is a long one.
  rr_action action{};
  ASSERT_EQ(rr_appender_next(appender, int64_t{1} << 60, 0, &action), nullptr);
  EXPECT_EQ(action.step, RR_CONNECT);
  rr_appender_free(appender);
  for (const char* field : {"max_queued_bytes", "append_timeout_ms"}) {
    json wrong = json::parse(options);
    wrong[field] = -1;
    EXPECT_EQ(Take(rr_appender_new(wrong.dump().data(), wrong.dump().size(), &appender)).detail["field"], field);
  }
}

TEST_F(CapiTest, SmallThings) {
  EXPECT_EQ(rr_abi_version(), RR_ABI_VERSION);
  rr_bytes* bytes = nullptr;
  ASSERT_EQ(rr_defaults(0, &bytes), nullptr);
  EXPECT_EQ(json::parse(TakeText(bytes))["channel_options"][0], (json{"grpc.enable_http_proxy", 0}));
  int64_t handle = 0;
  ASSERT_EQ(rr_sample_handle("a", 1, &handle), nullptr);
  EXPECT_EQ(handle, SampleHandle("a"));
  EXPECT_EQ(Take(rr_sample_handle("a b", 3, &handle)).code, 3);
  const uint32_t tokens[] = {1, 2, 3};
  EXPECT_EQ(rr_token_check(rr_token_check(0, tokens, 1), tokens + 1, 2), rr_token_check(0, tokens, 3));
  rr_geometry_free(nullptr);
  rr_plan_free(nullptr);
  rr_message_free(nullptr);
  rr_bytes_free(nullptr);
  rr_error_free(nullptr);
}

TEST_F(CapiTest, ServersOfAnEndpoint) {
  rr_servers* servers = nullptr;
  rr_bytes* bytes = nullptr;
  const auto present = [&] {
    EXPECT_EQ(rr_servers_present(servers, 0, &bytes), nullptr);
    return json::parse(TakeText(bytes));
  };
  ASSERT_EQ(rr_servers_new("[::1]:7", 7, &servers), nullptr);
  EXPECT_EQ(
      present(),
      (json{{"target", "dns:///%5B::1%5D:7"}, {"judged", "dns:///%5B::1%5D:7"}, {"channel_options", json::array()}}));
  EXPECT_EQ(rr_servers_has_others(servers), 0);
  rr_servers_free(servers);
  ASSERT_EQ(rr_servers_new("a:1,b:1", 7, &servers), nullptr);
  const std::string first = present()["target"];
  rr_servers_on_unavailable(servers, first.data(), first.size());
  EXPECT_NE(present()["target"], first);
  EXPECT_EQ(rr_servers_has_others(servers), 1);
  rr_servers_look_again(servers);
  rr_servers_free(servers);
  ASSERT_EQ(rr_servers_new("dns:///a:1", 10, &servers), nullptr);
  EXPECT_EQ(present()["channel_options"], json::array({json::array({"grpc.lb_policy_name", "round_robin"})}));
  rr_servers_free(servers);
  EXPECT_EQ(Take(rr_servers_new("a:1,a:1", 7, &servers)).code, 3);
  rr_servers_free(nullptr);
}

TEST_F(CapiTest, WeightVersionsOfOutputTokens) {
  const auto weights = [](const std::string& spans) {
    const std::string json =
        R"({"prompt_tokens": 4, "output_tokens": 3, "numbers": {"step-9": 9}, "spans": )" + spans + "}";
    rr_bytes* found = nullptr;
    rr_error* error = rr_output_weights(json.data(), json.size(), &found);
    std::string text = error != nullptr
                           ? rr_error_json(error)
                           : std::string(static_cast<const char*>(rr_bytes_data(found)), rr_bytes_size(found));
    rr_error_free(error);
    rr_bytes_free(found);
    return text;
  };
  EXPECT_EQ(weights(R"([{"version": "step-9", "start": 0, "end": 1}, {"version": 10, "start": 1, "end": 3}])"),
            R"([[0,4,9,"step-9"],[4,6,10,""]])");
  EXPECT_EQ(weights(R"([{"version": "1234567890123456789", "start": 0, "end": 3}])"),
            R"([[0,6,1234567890123456789,"1234567890123456789"]])");
  for (const char* spans :
       {R"([{"version": 1.7, "start": 0, "end": 3}])", R"([{"version": null, "start": 0, "end": 3}])",
        R"([{"version": true, "start": 0, "end": 3}])", R"([{"version": -1, "start": 0, "end": 3}])",
        R"([{"version": 1, "start": 0, "end": 4}])", R"([{"version": 1, "start": 0}])", "[1]", "{}"}) {
    EXPECT_THAT(weights(spans), ::testing::HasSubstr("weight_versions")) << spans;
  }
}

}  // namespace
}  // namespace routing_replay::client
