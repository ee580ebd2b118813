// Forks of a process that uses the C functions; parent and child continue.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/c_api/testing/c_api_fixture.h"

namespace routing_replay::client {
namespace {

using Steady = std::chrono::steady_clock;
using testing::Do;

constexpr std::chrono::seconds kLong(60);

// Runs two servers in another process. On the second one (`slow`), reads hang until a sample "go" exists, and an append
// to the sample "slow" takes 8 seconds.
class Servers {
 public:
  Servers() {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    process_ = fork();
    if (process_ == 0) Serve(ends[1]);
    close(ends[1]);
    std::string said;
    for (char next = 0; read(ends[0], &next, 1) == 1 && next != '\n';) said += next;
    const std::vector<std::string> endpoints = absl::StrSplit(said, ' ');
    good_ = endpoints[0];
    slow_ = endpoints[1];
  }
  ~Servers() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  const std::string& good() const { return good_; }
  const std::string& slow() const { return slow_; }

 private:
  [[noreturn]] static void Serve(int out) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    testing::FakeService good, slow;
    slow.OnRead([&](v1::ReadResponse&) { return !slow.Sample("go").rows.empty(); });
    slow.OnAppend([](const AppendRequest& request) {
      if (request.append && request.append->sample == "slow") std::this_thread::sleep_for(std::chrono::seconds(8));
      return Do::kAnswer;
    });
    const std::string said = good.endpoint() + " " + slow.endpoint() + "\n";
    if (write(out, said.data(), said.size()) < 0) std::abort();
    while (true) pause();
  }

  pid_t process_ = 0;
  std::string good_, slow_;
};

const Servers* servers = nullptr;

struct Rows {
  Rows(std::string sample, uint8_t first) : name(std::move(sample)) {
    for (size_t i = 0; i < sizeof(ids); ++i) ids[i] = static_cast<uint8_t>(first + i);
    append = {.sample = Text(name), .rows = &tensor, .weight_version = -1};
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  const std::string name;
  uint8_t ids[20];
  const int64_t shape[3] = {20, 1, 1};
  const rr_tensor tensor{.data = ids,
                         .size = sizeof(ids),
                         .encoding = Text("RAW"),
                         .dtype = Text("U8"),
                         .layer_basis = Text("MOE_LAYERS"),
                         .shape = shape,
                         .shape_count = 3};
  rr_append append;
};

// A client with a run and an appender, as one process uses them. Methods that return a string return "" or an error.
class User {
 public:
  explicit User(const std::string& endpoint) {
    const rr_client_options options{.endpoint = Text(endpoint), .tls = -1, .call_timeout_ms = -1};
    const int32_t moe_layers[] = {0}, num_experts[] = {256}, top_k[] = {1};
    const rr_geometry geometry{
        .num_layers = 1, .moe_layers = moe_layers, .num_experts = num_experts, .top_k = top_k, .count = 1};
    EXPECT_DONE(rr_client_new(&options, &client));
    EXPECT_DONE(rr_client_open_run(client, Text("run"), &geometry, nullptr, {}, 0, &kBlocking, &run));
    EXPECT_DONE(rr_run_new_appender(run, nullptr, &appender));
  }
  ~User() {
    rr_object_free(appender);
    rr_object_free(run);
    rr_object_free(client);
  }

  Failure Append(const Rows& rows) {
    uint64_t sequence = 0;
    return Failure(rr_appender_append(appender, &rows.append, 1, RR_BLOCK, &kBlocking, &sequence, nullptr));
  }
  Failure Flush() { return Failure(rr_appender_flush(appender, &kBlocking)); }
  Failure Put(const Rows& rows) {
    const rr_outcomes* outcome = nullptr;
    Failure failure(rr_run_put(run, &rows.append, &kBlocking, &outcome));
    rr_free(outcome);
    return failure;
  }
  std::string Read(const Rows& expected) {
    const rr_sample_read sample{.sample = Text(expected.name)};
    const rr_read read{.samples = &sample, .count = 1};
    const rr_rows* rows = nullptr;
    const Failure failure(rr_run_read(run, &read, &kBlocking, &rows));
    if (failure.code != absl::StatusCode::kOk) return failure.message;
    const bool same = rows->samples[0].ids_size == sizeof(expected.ids) &&
                      std::memcmp(rows->samples[0].ids, expected.ids, sizeof(expected.ids)) == 0;
    rr_free(rows);
    return same ? "" : "other rows";
  }
  // Appends a sample and reads it back.
  std::string Turn(const std::string& name) {
    const Rows rows(name, static_cast<uint8_t>(name.size()));
    if (const Failure failure = Append(rows); !failure.message.empty()) return "append: " + failure.message;
    if (const Failure failure = Flush(); !failure.message.empty()) return "flush: " + failure.message;
    const std::string read = Read(rows);
    return read.empty() ? "" : "read: " + read;
  }
  int64_t Counter(const std::string& name) {
    const rr_counters* counters = nullptr;
    EXPECT_DONE(rr_appender_metrics(appender, &counters));
    int64_t value = -1;
    for (size_t i = 0; i < counters->count; ++i) {
      if (String(counters->data[i].name) == name) value = counters->data[i].value;
    }
    rr_free(counters);
    return value;
  }

  rr_client* client = nullptr;
  rr_run* run = nullptr;
  rr_appender* appender = nullptr;
};

// Forks a child process that runs `work`.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    const Steady::time_point begin = Steady::now();
    rr_fork_before();
    rest_ = Steady::now() - begin;
    process_ = fork();
    if (process_ == 0) {
      rr_fork_in_child();
      const std::string wrong = work();
      if (!wrong.empty()) std::cerr << "in the child: " << wrong << std::endl;
      _exit(wrong.empty() ? 0 : 1);
    }
    rr_fork_in_parent();
  }

  double rest_ms() const { return std::chrono::duration<double, std::milli>(rest_).count(); }

  std::string Wait() const {
    const Steady::time_point end = Steady::now() + kLong;
    int status = 0;
    while (waitpid(process_, &status, WNOHANG) == 0) {
      if (Steady::now() > end) {
        kill(process_, SIGKILL);
        waitpid(process_, &status, 0);
        return "the child hangs";
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return status == 0 ? "" : absl::StrCat("the child ended with ", status);
  }

 private:
  Steady::duration rest_{};
  pid_t process_ = 0;
};

TEST(ForkTest, BothSidesGoOn) {
  constexpr int kForks = 300;
  User user(servers->good());
  std::atomic<int> turns = 0;
  std::string trouble;
  std::jthread busy([&](const std::stop_token& over) {
    User other(servers->good());
    while (!over.stop_requested() && trouble.empty()) trouble = other.Turn(absl::StrCat("busy-", turns++));
  });
  std::vector<double> rests;
  for (int i = 0; i < kForks; ++i) {
    const Rows in_flight(absl::StrCat("in-flight-", i), static_cast<uint8_t>(i));
    ASSERT_EQ(user.Append(in_flight).message, "");
    const Child child([&]() -> std::string {
      if (user.Counter("appends") != 0) return "appends of the parent";
      if (std::string wrong = user.Turn(absl::StrCat("child-", i)); !wrong.empty()) return wrong;
      if (i % 10 != 0) return "";
      const Child nested([&] { return user.Turn(absl::StrCat("nested-", i)); });
      std::string wrong = user.Turn(absl::StrCat("child-again-", i));
      return wrong.empty() ? nested.Wait() : wrong;
    });
    rests.push_back(child.rest_ms());
    ASSERT_EQ(user.Turn(absl::StrCat("parent-", i)), "") << i;
    ASSERT_EQ(user.Read(in_flight), "") << i;
    ASSERT_EQ(child.Wait(), "") << i;
  }
  busy.request_stop();
  busy.join();
  EXPECT_EQ(trouble, "");
  EXPECT_GT(turns, 1);
  EXPECT_EQ(user.Counter("acknowledged"), 2 * kForks);
  std::sort(rests.begin(), rests.end());
  std::cout << "at rest after " << rests[kForks / 2] << " ms (median), " << rests.back() << " ms (longest)\n";
}

TEST(ForkTest, AReadThatWaitsGoesOnInTheParent) {
  User user(servers->slow());
  const Rows late("late", 7), go("go", 1);
  ASSERT_EQ(user.Put(late).message, "");
  std::string of_thread = "nothing";
  std::jthread waits([&] { of_thread = user.Read(late); });
  TestQueue queue;
  const rr_sample_read sample{.sample = Text("late")};
  const rr_read read{.samples = &sample, .count = 1};
  const rr_rows* rows = nullptr;
  const rr_call call = queue.Call(1);
  ASSERT_DONE(rr_run_read(user.run, &read, &call, &rows));
  const rr_trajectory_options options{.sample = Text("s"), .existing = Text("none")};
  rr_trajectory* trajectory = nullptr;
  ASSERT_DONE(rr_appender_new_trajectory(user.appender, &options, &trajectory));
  for (int i = 0; i < 20; ++i) {
    const Child child([&]() -> std::string {
      const rr_trajectory_state* state = nullptr;
      if (Failure(rr_trajectory_describe(trajectory, &state)).code != absl::StatusCode::kFailedPrecondition) {
        return "a trajectory of the parent";
      }
      rr_object_free(trajectory);
      const rr_text name = sample.sample;
      const rr_sample_states* states = nullptr;
      if (!Failure(rr_run_stat(user.run, &name, 1, 0, &call, &states)).message.empty()) return "the tag is taken";
      if (queue.Wait(1).count(1) == 0) return "no end";
      rr_free(states);
      return "";
    });
    ASSERT_EQ(child.Wait(), "") << i;
  }
  EXPECT_FALSE(queue.Readable(0));
  EXPECT_EQ(of_thread, "nothing");
  ASSERT_EQ(user.Put(go).message, "");
  // The slow server looks for "go" only when a read begins. This fork interrupts the reads that hang, and the parent
  // sends them again.
  ASSERT_EQ(Child([] { return ""; }).Wait(), "");
  waits.join();
  EXPECT_EQ(of_thread, "");
  EXPECT_EQ(queue.Wait(1).at(1).message, "");
  rr_free(rows);
  rr_object_free(trajectory);
}

TEST(ForkTest, AChildOfAProcessNotAtRestIsToldSo) {
  User user(servers->slow());
  std::jthread slow([&] { EXPECT_EQ(user.Put(Rows("slow", 1)).message, ""); });
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const Child child([&]() -> std::string {
    const Failure failure = user.Append(Rows("a", 1));
    if (failure.code != absl::StatusCode::kFailedPrecondition) return "an append: " + failure.message;
    rr_object_free(user.appender);
    const Child nested([&] { return user.Flush().code == absl::StatusCode::kFailedPrecondition ? "" : "a flush"; });
    return nested.Wait();
  });
  EXPECT_EQ(child.Wait(), "");
  slow.join();
  EXPECT_EQ(user.Append(Rows("a", 1)).message, "");
  EXPECT_EQ(user.Flush().message, "");
}

// After a fork() without rr_fork_before, calls in the child fail; they do not hang. The parent continues.
TEST(ForkTest, AForkInSilenceIsNoHang) {
  User user(servers->good());
  ASSERT_EQ(user.Turn("before"), "");
  const pid_t process = fork();
  if (process == 0) _exit(user.Flush().code == absl::StatusCode::kFailedPrecondition ? 0 : 1);
  int status = -1;
  waitpid(process, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(user.Turn("after"), "");
}

}  // namespace
}  // namespace routing_replay::client

int main(int argc, char** argv) {
  const routing_replay::client::Servers servers;  // Created before this process uses gRPC.
  routing_replay::client::servers = &servers;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
