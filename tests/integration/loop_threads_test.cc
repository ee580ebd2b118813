// The loop threads of a server must never wait for its store.
#include <dlfcn.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "tests/integration/fixture.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::testing {
namespace {

std::string ThreadName() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

// Learns from the functions below when a thread of this process waits, or syncs a log of RocksDB, and can hold up these
// syncs.
class Hooks {
 public:
  // The object is never destroyed, because threads of RocksDB outlive the tests.
  static Hooks& Get() {
    static auto* hooks = new Hooks();
    return *hooks;
  }

  void OnSync(int fd) {
    char path[4096] = "";
    const ssize_t size = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), path, sizeof(path) - 1);
    if (size < 0 || !absl::EndsWith(path, ".log")) return;
    MutexLock lock(mutex_);
    ++syncs_;
    threads_.insert(ThreadName());
    changed_.NotifyAll();
    while (blocked_) changed_.Wait(mutex_);
  }
  void OnWait(int change) {
    if (ThreadName() != "call-worker") return;
    MutexLock lock(mutex_);
    waiting_ += change;
    changed_.NotifyAll();
  }

  void Block() {
    MutexLock lock(mutex_);
    blocked_ = true;
    syncs_ = 0;
    threads_.clear();
  }
  void Open() {
    MutexLock lock(mutex_);
    blocked_ = false;
    changed_.NotifyAll();
  }
  // Waits until `syncs` syncs have begun since Block. The last one is still held up.
  void AwaitSyncs(int syncs) {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return syncs_ >= syncs; });
  }
  // Waits until `appends` appends are in RocksDB's queue, behind the one that is being written.
  void AwaitQueue(int appends) {
    Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ >= appends; });
  }
  int syncs() {
    MutexLock lock(mutex_);
    return syncs_;
  }
  std::set<std::string> threads() {
    MutexLock lock(mutex_);
    return threads_;
  }

 private:
  void Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kCallTimeout;
    MutexLock lock(mutex_);
    while (!condition()) ASSERT_TRUE(changed_.WaitUntil(mutex_, deadline)) << "in vain";
  }

  Mutex mutex_;
  CondVar changed_;
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  int syncs_ ABSL_GUARDED_BY(mutex_) = 0;
  int waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace routing_replay::testing

#define RR_HOOK extern "C" __attribute__((visibility("default")))

RR_HOOK int fdatasync(int fd) {
  routing_replay::testing::Hooks::Get().OnSync(fd);
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
RR_HOOK int fsync(int fd) {
  routing_replay::testing::Hooks::Get().OnSync(fd);
  return static_cast<int>(syscall(SYS_fsync, fd));
}

// Counts the threads that wait in RocksDB's queue of writers. They wait on a condition variable on their own stack; a
// worker that waits for work uses one that all workers share, which is not on its stack.
RR_HOOK int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*);
#ifdef RR_THREAD_SANITIZER
  static void* const versioned = nullptr;  // Use ThreadSanitizer's function, which knows that the lock is released.
#else
  static void* const versioned = dlvsym(RTLD_NEXT, "pthread_cond_wait", "GLIBC_2.3.2");  // Not an older one.
#endif
  static const auto wait =
      reinterpret_cast<Wait>(versioned != nullptr ? versioned : dlsym(RTLD_NEXT, "pthread_cond_wait"));
  constexpr uintptr_t kStack = 256 << 10;
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  const bool own = reinterpret_cast<uintptr_t>(condition) - here < kStack;
  if (own) routing_replay::testing::Hooks::Get().OnWait(+1);
  const int result = wait(condition, mutex);
  if (own) routing_replay::testing::Hooks::Get().OnWait(-1);
  return result;
}

namespace routing_replay::testing {
namespace {

constexpr int64_t kRows = 256;
constexpr int kAppends = 16;

class RocksLoopThreadsTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer({.store = absl::StrCat("rocksdb:", directory_.path()), .durability = "synced"});
    run_ = OpenRun("run", geometry_);
    ASSERT_OK(Put("first"));
  }
  void TearDown() override {
    Hooks::Get().Open();
    run_.reset();
    client_.reset();
    server_.reset();  // Must be destroyed before the directory is removed.
  }

  absl::Status Put(const std::string& sample) {
    return PutRows(*run_, routes_, {0, kRows}, {.sample = sample}).status();
  }
  std::future<absl::Status> PutSoon(const std::string& sample) {
    return std::async(std::launch::async, [this, sample] { return Put(sample); });
  }

  const ScratchDirectory directory_;
  const Geometry geometry_ = Geometry::Uniform(48, 128, 8);
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, kRows, 7);
  RunHandle run_;
};

TEST_F(RocksLoopThreadsTest, AppendsThatComeAtOnceShareSyncs) {
  Hooks::Get().Block();
  std::vector<std::future<absl::Status>> puts;
  puts.push_back(PutSoon("0"));
  Hooks::Get().AwaitSyncs(1);
  for (int i = 1; i < kAppends; ++i) puts.push_back(PutSoon(absl::StrCat(i)));
  Hooks::Get().AwaitQueue(kAppends - 1);
  Hooks::Get().Open();
  for (auto& put : puts) EXPECT_OK(put.get());
  EXPECT_LE(Hooks::Get().syncs(), 1 + 2);
  EXPECT_EQ(Hooks::Get().threads(), std::set<std::string>{"call-worker"});
  for (int i = 0; i < kAppends; ++i) ExpectRows(*run_, absl::StrCat(i), routes_, {{0, kRows}});
}

TEST_F(RocksLoopThreadsTest, ReadsAreAnsweredWhileASyncDoesNotEnd) {
  Hooks::Get().Block();
  std::vector<std::future<absl::Status>> puts;
  for (int i = 0; i < kAppends; ++i) puts.push_back(PutSoon(absl::StrCat(i)));
  Hooks::Get().AwaitSyncs(1);
  Hooks::Get().AwaitQueue(kAppends - 1);
  for (int i = 0; i < kAppends && !HasFatalFailure(); ++i) ExpectRows(*run_, "first", routes_, {{0, kRows}});
  for (auto& put : puts) EXPECT_EQ(put.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  Hooks::Get().Open();
  for (auto& put : puts) EXPECT_OK(put.get());
}

// Both appenders use the same connection, and therefore the same loop thread.
TEST_F(RocksLoopThreadsTest, AStreamIsCreditedWhileAnotherWaitsForItsSync) {
  Hooks::Get().Block();
  const auto appender = run_->NewAppender({});
  ASSERT_OK(appender->Append({.sample = "0"}, Int32Tensor(geometry_, kRows), AsBytes(routes_.Tensor({0, kRows}))));
  Hooks::Get().AwaitSyncs(1);
  const auto other = run_->NewAppender({});
  ASSERT_OK(other->Append({.sample = "1"}, Int32Tensor(geometry_, kRows), AsBytes(routes_.Tensor({0, kRows}))));
  Hooks::Get().AwaitQueue(1);
  Hooks::Get().Open();
  EXPECT_OK(appender->Flush(kCallTimeout));
  EXPECT_OK(other->Flush(kCallTimeout));
}

// A clock that records which loop threads have asked for the time. Each call does, so the clock shows which thread has
// served it.
class LoopClock final : public Clock {
 public:
  Time Now() const override {
    if (ThreadName() == "call-loop") {
      MutexLock lock(mutex_);
      loops_.insert(pthread_self());
    }
    return Real().Now();
  }
  std::chrono::system_clock::time_point TimeOfDay() const override { return Real().TimeOfDay(); }
  std::set<pthread_t> Take() {
    MutexLock lock(mutex_);
    return std::exchange(loops_, {});
  }

 private:
  mutable Mutex mutex_;
  mutable std::set<pthread_t> loops_ ABSL_GUARDED_BY(mutex_);
};

TEST(ConnectionsTest, AreSharedOutEvenly) {
  constexpr int kConnections = 24;
  static LoopClock clock;
  const auto server = Server::Start({.listen = {"127.0.0.1:0"}, .threads = 2}, clock);
  ASSERT_OK(server);
  std::map<pthread_t, int> connections;
  std::vector<std::unique_ptr<v1::RoutingReplay::Stub>> stubs;  // Each stub keeps its connection.
  for (int i = 0; i < kConnections; ++i) {
    grpc::ChannelArguments apart;
    apart.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::RoutingReplay::NewStub(
        grpc::CreateCustomChannel((*server)->advertised(), grpc::InsecureChannelCredentials(), apart)));
    clock.Take();
    v1::ReadRequest request;
    request.set_run("none");
    grpc::ClientContext context;
    const auto reader = stubs.back()->Read(&context, request);
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
    const std::set<pthread_t> loops = clock.Take();
    ASSERT_EQ(loops.size(), 1u);
    ++connections[*loops.begin()];
  }
  ASSERT_EQ(connections.size(), 2u);
  for (const auto& [loop, count] : connections) EXPECT_NEAR(count, kConnections / 2, 1);
}

// Two servers on one Redis.
class RedisLoopThreadsTest : public ServerTest {
 protected:
  void SetUp() override {
    if (const std::string reason = NoRedisReason(); !reason.empty()) GTEST_SKIP() << reason;
    auto redis = RedisProcess::Start();
    ASSERT_OK(redis);
    redis_ = *std::move(redis);
    StartServer(Config());
    auto other = Server::Start(Config());
    ASSERT_OK(other);
    other_ = *std::move(other);
    auto client = Client::Connect({.endpoint = other_->advertised()});
    ASSERT_OK(client);
    other_client_ = *std::move(client);
    stub_ = v1::RoutingReplay::NewStub(grpc::CreateChannel(server_->advertised(), grpc::InsecureChannelCredentials()));
  }

  ServerConfig Config() const {
    return {.listen = {"127.0.0.1:0"},
            .store = absl::StrCat("redis://127.0.0.1:", redis_->ports().client),
            .sweep_interval = std::chrono::hours(1)};  // A sweep would read records of runs, too.
  }
  // Returns how often Redis has run this command so far, also from scripts.
  int64_t Calls(absl::string_view command) {
    const auto stats = redis_->Ask(RedisCommand({"INFO", "commandstats"}));
    EXPECT_OK(stats);
    const std::string line = absl::StrCat("cmdstat_", command, ":calls=");
    const size_t at = stats->text.find(line);
    if (at == std::string::npos) return 0;
    const size_t begin = at + line.size();
    int64_t calls = -1;
    EXPECT_TRUE(absl::SimpleAtoi(stats->text.substr(begin, stats->text.find(',', begin) - begin), &calls));
    return calls;
  }
  // Appends one row of u8 ids to the first server, without opening the run there.
  grpc::Status PutRow(const std::string& sample, const std::vector<uint8_t>& ids, int layers, int64_t row_start = 0) {
    v1::AppendRequest request;
    request.set_run("run");
    v1::AppendHeader& append = *request.mutable_append();
    append.set_sample(sample);
    append.set_row_start(row_start);
    append.set_rows(1);
    append.mutable_tensor()->set_encoding(v1::TensorPayload::RAW);
    append.mutable_tensor()->set_dtype(v1::TensorPayload::U8);
    append.mutable_tensor()->add_shape(1);
    append.mutable_tensor()->add_shape(layers);
    append.mutable_tensor()->add_shape(static_cast<int64_t>(ids.size()) / layers);
    append.mutable_tensor()->set_layer_basis(v1::TensorPayload::MOE_LAYERS);
    request.set_payload(ids.data(), ids.size());
    grpc::ClientContext context;
    v1::AppendAck ack;
    return stub_->Put(&context, request, &ack);
  }

  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<Server> other_;
  std::unique_ptr<Client> other_client_;
  std::unique_ptr<v1::RoutingReplay::Stub> stub_;
};

TEST_F(RedisLoopThreadsTest, AnAppendOfWhatItsServerKnowsLooksAtNothingFirst) {
  OpenRun("run", Geometry::Uniform(1, 16, 2));
  const int64_t scripts = Calls("eval"), looks = Calls("hgetall");
  for (int i = 0; i < kAppends; ++i) ASSERT_TRUE(PutRow("grows", {0, 1}, 1, i).ok());
  for (int i = 0; i < kAppends; ++i) ASSERT_TRUE(PutRow(absl::StrCat(i), {0, 1}, 1).ok());
  EXPECT_EQ(Calls("eval") - scripts, 2 * kAppends);
  EXPECT_EQ(Calls("hgetall") - looks, 0);
}

TEST_F(RedisLoopThreadsTest, AnAppendToASampleThatAnotherServerChangedLooksAndIsMade) {
  OpenRun("run", Geometry::Uniform(1, 16, 2));
  const auto run = other_client_->JoinRun("run");
  ASSERT_OK(run);
  ASSERT_TRUE(PutRow("a", {0, 1}, 1).ok());
  ASSERT_OK((*run)->Truncate("a", Producer::kRollout, 0, std::nullopt));
  EXPECT_EQ(PutRow("a", {0, 1}, 1, 1).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "of an old revision";
  ASSERT_TRUE(PutRow("b", {0, 1}, 1).ok());
  ASSERT_OK((*run)->Release(std::vector<std::string>{"b"}, {}));
  const grpc::Status gap = PutRow("b", {0, 1}, 1, 1);
  EXPECT_FALSE(gap.ok()) << "the sample is gone";
  EXPECT_TRUE(PutRow("b", {2, 3}, 1).ok());
  const auto state = (*run)->Stat("b");
  ASSERT_OK(state);
  EXPECT_EQ(state->committed_rows, 1);
}

TEST_F(RedisLoopThreadsTest, AStatOfManySamplesIsAFewPipelines) {
  OpenRun("run", Geometry::Uniform(1, 16, 2));
  v1::StatRequest request;
  request.set_run("run");
  for (int i = 0; i < kAppends; ++i) {
    ASSERT_TRUE(PutRow(absl::StrCat(i), {0, 1}, 1).ok());
    request.add_samples(absl::StrCat(i));
    request.add_samples(absl::StrCat("none", i));
  }
  const int64_t looks = Calls("hgetall"), runs = Calls("getrange");
  grpc::ClientContext context;
  v1::StatResponse response;
  ASSERT_TRUE(stub_->Stat(&context, request, &response).ok());
  EXPECT_EQ(response.found_size(), kAppends);
  EXPECT_EQ(Calls("hgetall") - looks, 2 * kAppends) << "one look at each sample";
  EXPECT_LE(Calls("getrange") - runs, 2) << "each look asks once whether the run is there";
}

TEST_F(RedisLoopThreadsTest, AnAppendToARunThatAnotherServerMadeAgainIsTakenForThatRun) {
  OpenRun("run", Geometry::Uniform(1, 16, 2));
  ASSERT_TRUE(PutRow("a", {0, 1}, 1).ok());
  const auto make_again = [&](const Geometry& geometry) {
    const auto run = other_client_->JoinRun("run");
    ASSERT_OK(run);
    ASSERT_OK((*run)->Drop());
    ASSERT_OK(other_client_->OpenRun("run", geometry));
  };
  make_again(Geometry::Uniform(2, 300, 3));  // No append for the previous run fits this one.
  EXPECT_EQ(PutRow("a", {0, 1}, 1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::Status put = PutRow("a", {0, 1, 2, 3, 4, 5}, 2);
  EXPECT_TRUE(put.ok()) << put.error_message();
  make_again(Geometry::Uniform(2, 16, 3));  // Every append for the previous run fits this one.
  put = PutRow("a", {0, 1, 2, 3, 4, 15}, 2);
  EXPECT_TRUE(put.ok()) << put.error_message();
  make_again(Geometry::Uniform(2, 8, 3));  // Only some appends for the previous run fit this one.
  EXPECT_EQ(PutRow("a", {0, 1, 2, 3, 4, 15}, 2).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  put = PutRow("a", {0, 1, 2, 3, 4, 7}, 2);
  EXPECT_TRUE(put.ok()) << put.error_message();
  const auto run = other_client_->JoinRun("run");
  ASSERT_OK(run);
  const auto state = (*run)->Stat("a");
  ASSERT_OK(state);
  EXPECT_EQ(state->committed_rows, 1);
}

}  // namespace
}  // namespace routing_replay::testing
