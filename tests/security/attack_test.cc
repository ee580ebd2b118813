// What a tenant with a good token, or a stranger with a socket, can do to a real server: the answers that SECURITY.md
// states, the server's memory, and another client that goes on.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zstd.h>

#include <grpcpp/generic/generic_stub.h>

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/transport/grpc_status.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/security/bystander.h"
#include "tests/security/guarded_server.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kGiB = 1 << 30;
constexpr std::chrono::seconds kPatience(20);
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
const std::vector<TestToken> kTokens = {{.token = "attacker"}, {.token = "other"}};

class AttackTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> flags = {}, const std::string& program = RR_SERVER) {
    flags.insert(flags.end(), {"--memory-budget", "64MiB", "--max-message-bytes", "8MiB"});
    server_ = std::make_unique<GuardedServer>(kTokens, flags, false, program);
    stub_ = v1::RoutingReplay::NewStub(server_->NewChannel());
    ASSERT_TRUE(OpenRun(*stub_, "attacker", "run").ok());
  }
  absl::Status Put(const v1::AppendRequest& request) {
    v1::AppendAck ack;
    return FromGrpcStatus(stub_->Put(NewCall("attacker").get(), request, &ack));
  }
  int64_t PeakMemory() const { return *ProcessMemory(server_->pid(), "VmHWM"); }

  std::unique_ptr<GuardedServer> server_;
  std::unique_ptr<GuardedServer::Stub> stub_;
};

// That nobody listens on now.
std::string FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  close(fd);
  return absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
}

std::string Compressed(const std::string& bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1));
  return out;
}

v1::AppendRequest Bomb(const std::string& frame, int64_t raw_size) {
  v1::AppendRequest request = OneAppend("run", "bomb", 3);
  request.mutable_append()->mutable_tensor()->set_compression(v1::TensorPayload::ZSTD);
  request.mutable_append()->mutable_tensor()->set_raw_size(raw_size);
  request.set_payload(frame);
  return request;
}

TEST_F(AttackTest, ZstdBombs) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  const std::string frame = Compressed(std::string(256 * kMiB, '\0'));
  ASSERT_LT(frame.size(), 64u << 10);
  for (const int64_t claim : {int64_t{3}, 256 * kMiB, 64 * kGiB}) {
    const absl::Status status = Put(Bomb(frame, claim));
    EXPECT_TRUE(status.code() == kInvalid || status.code() == kExhausted) << status;
    ASSERT_TRUE(GetErrorDetail(status).has_value());
  }
  // A frame that says nothing of its size, two frames, and a skippable one.
  const std::string good = Compressed(std::string(3, '\1'));
  EXPECT_OK(Put(Bomb(good, 3)));
  for (const std::string& bad : {good + good, std::string("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12), std::string(8, 'x')}) {
    EXPECT_EQ(Put(Bomb(bad, 3)).code(), kInvalid);
  }
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 64 * kMiB);
}

TEST_F(AttackTest, ZstdEmptyFrames) {
  Start();
  const std::string empty = Compressed("");
  std::string frames;
  while (frames.size() < 7u << 20) frames += empty;
  EXPECT_THAT(Put(Bomb(frames, 0)), Fails(kInvalid, Reason::kEncoding));
}

// A megabyte on the wire that gRPC would make a gigabyte of, from somebody without a token.
TEST_F(AttackTest, CompressedMessages) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  const std::string zeros(96 * kMiB, '\0');
  v1::AppendRequest append;
  append.set_payload(zeros);
  v1::StatRequest stat;
  stat.set_run(zeros);
  v1::ReadRequest read;
  read.set_run(zeros);
  const auto squeezed = [](grpc_compression_algorithm algorithm) {
    auto call = NewCall("");
    call->set_compression_algorithm(algorithm);
    return call;
  };
  v1::AppendAck ack;
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    EXPECT_EQ(stub_->Put(squeezed(algorithm).get(), append, &ack).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  v1::StatResponse found;
  EXPECT_FALSE(stub_->Stat(squeezed(GRPC_COMPRESS_GZIP).get(), stat, &found).ok());
  const auto read_call = squeezed(GRPC_COMPRESS_GZIP), append_call = squeezed(GRPC_COMPRESS_GZIP);
  const auto reader = stub_->Read(read_call.get(), read);
  v1::ReadResponse rows;
  EXPECT_FALSE(reader->Read(&rows));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  const auto stream = stub_->Append(append_call.get());
  stream->Write(append);
  v1::AppendResponse answer;
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_FALSE(stream->Finish().ok());
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 64 * kMiB);
}

TEST_F(AttackTest, ShapeLies) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  for (const std::vector<uint64_t>& shape :
       std::vector<std::vector<uint64_t>>{{1 << 20, 1 << 20, 1},
                                          {uint64_t{1} << 62, 1, 1},
                                          {uint64_t{1} << 63, 1, 1},
                                          {uint64_t{1} << 32, uint64_t{1} << 32, 1},
                                          {3, 1, uint64_t{1} << 61},
                                          {4, 1, 1},
                                          {3, 1},
                                          {}}) {
    v1::AppendRequest request = OneAppend("run", "lie", 3);
    request.mutable_append()->mutable_tensor()->clear_shape();
    for (const uint64_t axis : shape) request.mutable_append()->mutable_tensor()->add_shape(axis);
    const absl::Status status = Put(request);
    EXPECT_EQ(status.code(), kInvalid) << status;
  }
  v1::AppendRequest rows = OneAppend("run", "lie", 3);
  rows.mutable_append()->set_rows(uint64_t{1} << 62);
  EXPECT_EQ(Put(rows).code(), kInvalid);
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 32 * kMiB);
}

TEST_F(AttackTest, NpyAndBase64) {
  Start();
  const auto with = [](v1::TensorPayload::Encoding encoding, const std::string& payload) {
    v1::AppendRequest request = OneAppend("run", "npy", 3);
    v1::TensorPayload& tensor = *request.mutable_append()->mutable_tensor();
    tensor.set_encoding(encoding);
    if (encoding == v1::TensorPayload::NPY) {
      tensor.clear_shape();
      tensor.set_dtype(v1::TensorPayload::DTYPE_UNSPECIFIED);
    }
    request.set_payload(payload);
    return request;
  };
  const auto npy = [](const std::string& header) {
    return absl::StrCat(std::string("\x93NUMPY\x01\0", 8), std::string(1, static_cast<char>(header.size() & 0xFF)),
                        std::string(1, static_cast<char>(header.size() >> 8)), header, "\1\1\1");
  };
  const std::string rest = "'fortran_order': False, 'shape': (3, 1, 1), }";
  EXPECT_OK(Put(with(v1::TensorPayload::NPY, npy("{'descr': '|u1', " + rest))));
  for (const std::string& bad :
       {npy("{'descr': '|O', " + rest),  // Objects are pickles.
        npy("{'descr': [('a', '|u1')], " + rest), npy("{'descr': '|u1', 'fortran_order': True, 'shape': (3, 1, 1), }"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1, 1, 1, 1), }"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1, 4611686018427387904), }"),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (__import__('os').abort(), ), }"),
        npy(std::string(60000, '{')), std::string("\x80\x04\x95\0\0\0\0\0\0\0\0.", 12),  // A pickle.
        std::string("PK\x03\x04")}) {                                                    // What torch.save writes.
    EXPECT_EQ(Put(with(v1::TensorPayload::NPY, bad)).code(), kInvalid) << absl::CHexEscape(bad.substr(0, 80));
  }
  EXPECT_OK(Put(with(v1::TensorPayload::BASE64, "AQEB")));
  for (const std::string& bad : {std::string("AQ EB"), std::string("AQEB\n"), std::string("AQEBAQ="),
                                 std::string("AQ=B"), std::string("AQE-"), std::string(4 * kMiB, 'A')}) {
    EXPECT_EQ(Put(with(v1::TensorPayload::BASE64, bad)).code(), kInvalid) << bad.substr(0, 20);
  }
}

TEST_F(AttackTest, IdsThatAreNoExperts) {
  Start();
  for (const char id : {'\4', '\xff'}) {
    v1::AppendRequest request = OneAppend("run", "ids", 3);
    (*request.mutable_payload())[1] = id;
    EXPECT_THAT(Put(request), Fails(kInvalid, Reason::kIdRange));
  }
  // Values that wrap to good ones in a narrower type.
  v1::AppendRequest wide = OneAppend("run", "ids", 3);
  wide.mutable_append()->mutable_tensor()->set_dtype(v1::TensorPayload::I64);
  std::string elements(24, '\0');
  elements[12] = 1;  // 2^32
  wide.set_payload(elements);
  EXPECT_THAT(Put(wide), Fails(kInvalid, Reason::kIdRange));
}

TEST_F(AttackTest, NamesThatAreNone) {
  Start();
  for (const std::string& name :
       {std::string("../../etc/passwd\n"), std::string("a\0b", 3), std::string("a b"), std::string("\x1b[31m"),
        std::string("{\"level\":\"info\"}"), std::string(129, 'a'), std::string(2 << 20, 'a')}) {
    EXPECT_EQ(Put(OneAppend("run", name, 3)).code(), kInvalid) << absl::CHexEscape(name.substr(0, 20));
    EXPECT_EQ(FromGrpcStatus(OpenRun(*stub_, "attacker", name)).code(), kInvalid);
  }
}

TEST_F(AttackTest, DamagedBytesAndOtherTokens) {
  Start();
  ASSERT_OK(Put(OneAppend("run", "sample", 3)));
  v1::AppendRequest blocks = OneAppend("run", "block", 3);
  blocks.mutable_append()->clear_tensor();
  v1::BlockHeader& block = *blocks.mutable_append()->mutable_blocks()->add_blocks();
  block.set_rows(3);
  block.set_codec(v1::CODEC_RAW);
  block.add_plane_crc32c(12345);
  EXPECT_THAT(Put(blocks), Fails(kInvalid, Reason::kChecksum));
  v1::AppendRequest tokens = OneAppend("run", "tokens", 3);
  tokens.mutable_append()->set_token_ids(std::string(12, '\1'));
  ASSERT_OK(Put(tokens));
  tokens.mutable_append()->set_token_ids(std::string(12, '\2'));
  EXPECT_THAT(Put(tokens), Fails(absl::StatusCode::kAlreadyExists, Reason::kOtherTokens));
}

TEST_F(AttackTest, StaleWeights) {
  Start();
  v1::AppendRequest request = OneAppend("run", "sample", 3);
  request.mutable_append()->set_weight_version(3);
  ASSERT_OK(Put(request));
  v1::ReadRequest read;
  read.set_run("run");
  v1::SampleRead& sample = *read.add_samples();
  sample.set_sample("sample");
  sample.set_min_weight_version(4);
  const auto call = NewCall("attacker");
  const auto reader = stub_->Read(call.get(), read);
  v1::ReadResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.records(0).status(), v1::SampleRecord::VERSION_REFUSED);
  EXPECT_EQ(response.pieces_size(), 0);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

// Requests that are small on the wire and large as objects.
TEST_F(AttackTest, RequestsThatGrow) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  v1::StatRequest stat;
  stat.set_run("run");
  std::string fields = stat.SerializeAsString();
  while (fields.size() < 7u << 20) fields.append("\x1a\0", 2);  // A sample with an empty name.
  ASSERT_TRUE(stat.ParseFromString(fields));
  v1::StatResponse found;
  for (const char* token : {"attacker", "", "nobody"}) {
    const grpc::Status status = stub_->Stat(NewCall(token).get(), stat, &found);
    EXPECT_EQ(status.error_code(), std::string(token) == "attacker" ? grpc::StatusCode::RESOURCE_EXHAUSTED
                                                                    : grpc::StatusCode::UNAUTHENTICATED);
  }
  v1::ReadRequest read;
  read.set_run("run");
  for (int i = 0; i < 300'000; ++i) read.add_samples();
  const auto call = NewCall("attacker");
  const auto reader = stub_->Read(call.get(), read);
  v1::ReadResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 96 * kMiB);
}

TEST_F(AttackTest, TokenChecksThatGrow) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  v1::ReadRequest read;
  read.set_run("run");
  v1::SampleRead& sample = *read.add_samples();
  for (int i = 0; i < 3'000'000; ++i) sample.add_token_checks();  // 6 MB, and 100 MB in vectors.
  const auto call = NewCall("attacker");
  const auto reader = stub_->Read(call.get(), read);
  v1::ReadResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 64 * kMiB);
}

// gRPC gives its listener up then, for good. Nobody is sent to such a server, and who watches it hears of it.
TEST_F(AttackTest, ConnectionsThatTakeAllDescriptors) {
  const ScratchDirectory scratch;
  const std::string program = scratch.path() + "/few";
  std::ofstream(program) << "#!/bin/sh\nulimit -n 100\nexec " RR_SERVER " \"$@\"\n";
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  const std::string http = FreeAddress();
  Start({"--operations-listen", http}, program);
  EXPECT_EQ(HttpAsk(http, "GET", "/readyz").code, 200);
  std::vector<std::unique_ptr<HttpConnection>> connections;
  for (int i = 0; i < 150; ++i) connections.push_back(std::make_unique<HttpConnection>(server_->endpoint()));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  connections.clear();
  const auto answers = [&] {
    const auto stub = v1::RoutingReplay::NewStub(server_->NewChannel());
    grpc::ClientContext call;
    call.AddMetadata("authorization", "Bearer attacker");
    call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    v1::ServerInfo info;
    return stub->GetServerInfo(&call, {}, &info).ok();
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const int wanted = answers() ? 200 : 503;
  int code = 0;
  while (code != wanted && std::chrono::steady_clock::now() < deadline) code = HttpAsk(http, "GET", "/readyz").code;
  EXPECT_EQ(code, wanted);
}

TEST_F(AttackTest, RunsAreCounted) {
  Start({"--max-runs", "4"});  // One is there.
  for (const char* run : {"a", "b", "c"}) EXPECT_TRUE(OpenRun(*stub_, "attacker", run).ok());
  for (const char* run : {"d", "e"}) {
    const absl::Status status = FromGrpcStatus(OpenRun(*stub_, "attacker", run));
    EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
    EXPECT_EQ(GetErrorDetail(status)->field, "max-runs");
  }
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "a").ok());  // Is there already.
  v1::DropRunRequest drop;
  drop.set_run("b");
  v1::DropRunResponse dropped;
  EXPECT_TRUE(stub_->DropRun(NewCall("attacker").get(), drop, &dropped).ok());
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "d").ok());
}

int ThreadsOf(pid_t pid) {
  int threads = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    ++threads;
  }
  return threads;
}

// Calls of which the headers come, and nothing else.
TEST_F(AttackTest, ControlCallsWithoutARequest) {
  Start({"--stall-timeout", "2s", "--max-streams", "1000"});
  constexpr int kCalls = 600;
  grpc::GenericStub stub(server_->NewChannel());
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status end;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<Call>());
    Call& call = *calls.back();
    call.context.AddMetadata("authorization", "Bearer attacker");
    call.stream = stub.PrepareCall(&call.context, "/routing_replay.v1.RoutingReplay/GetServerInfo", &queue);
    call.stream->StartCall(nullptr);
    call.stream->Finish(&call.end, &call);
  }
  int most = 0;
  void* tag;
  bool ok;
  for (int ended = 0; ended < kCalls;) {
    const auto got = queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + std::chrono::milliseconds(20));
    most = std::max(most, ThreadsOf(server_->pid()));
    if (got != grpc::CompletionQueue::GOT_EVENT) continue;
    if (tag != nullptr) ++ended;  // Of each call, its end; without a deadline, by the server alone.
  }
  EXPECT_LT(most, 320);
  for (const auto& call : calls) EXPECT_FALSE(call->end.ok());
  v1::ServerInfo info;
  EXPECT_TRUE(stub_->GetServerInfo(NewCall("attacker").get(), {}, &info).ok());
}

// The greatest requests that are taken, all of them waiting.
TEST_F(AttackTest, WaitingRequestsAreBounded) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  v1::ReadRequest read;
  read.set_run("run");
  read.set_wait(true);
  for (int i = 0; i < 200'000; ++i) read.add_samples();
  read.mutable_samples(0)->set_sample("absent");
  struct Waiting {
    std::unique_ptr<grpc::ClientContext> call;
    std::unique_ptr<grpc::ClientReader<v1::ReadResponse>> reader;
  };
  std::vector<Waiting> waiting;
  for (int i = 0; i < 12; ++i) {
    waiting.push_back({.call = NewCall("attacker")});
    waiting.back().reader = stub_->Read(waiting.back().call.get(), read);
  }
  // Those that were not taken end at once, and there are no others that end.
  const auto ended = [](Waiting& one) {
    v1::ReadResponse response;
    return !one.reader->Read(&response) && one.reader->Finish().error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  };
  EXPECT_TRUE(ended(waiting.back()));
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 160 * kMiB);  // Without a bound it is 12 times 27 MiB and more.
  // A short read goes in between.
  v1::ReadRequest small;
  small.set_run("bystander");
  small.add_samples()->set_sample("0");
  const auto call = NewCall("other");
  const auto reader = stub_->Read(call.get(), small);
  v1::ReadResponse response;
  while (reader->Read(&response)) continue;
  EXPECT_TRUE(reader->Finish().ok());
  for (Waiting& one : waiting) one.call->TryCancel();
}

// A raw socket that speaks HTTP/2 a little and then nothing, or ever so slowly.
class Socket {
 public:
  explicit Socket(const std::string& endpoint) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { close(fd_); }

  bool Send(const std::string& bytes) const {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // Whether the server closes the connection in time.
  bool IsClosed(std::chrono::seconds patience) const {
    const timeval timeout{patience.count(), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char bytes[4096];
    ssize_t got;
    while ((got = recv(fd_, bytes, sizeof(bytes), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

TEST_F(AttackTest, SlowLorisOnTheConnection) {
  Start({"--stall-timeout", "1s"});
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings("\0\0\0\x04\0\0\0\0\0", 9);
  const std::string half_a_frame("\0\x40\0\x01\x04\0\0\0\x01", 9);  // Headers of 16 KiB are to follow.
  std::vector<std::unique_ptr<Socket>> silent, half, slow;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<Socket>(server_->endpoint()));
    half.push_back(std::make_unique<Socket>(server_->endpoint()));
    EXPECT_TRUE(half.back()->Send(preface + settings + half_a_frame));
    slow.push_back(std::make_unique<Socket>(server_->endpoint()));
  }
  // A byte at a time, for longer than the server waits.
  for (size_t byte = 0; byte < preface.size(); ++byte) {
    for (const auto& socket : slow) socket->Send(preface.substr(byte, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(80));
  }
  for (const auto* sockets : {&silent, &half, &slow}) {
    for (const auto& socket : *sockets) EXPECT_TRUE(socket->IsClosed(kPatience));
  }
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 32 * kMiB);
}

TEST_F(AttackTest, CreditThatIsNotUsedComesBack) {
  Start({"--stall-timeout", "1s"});
  // A stream that holds nothing may rest.
  const auto rest = NewCall("other");
  const auto resting = stub_->Append(rest.get());
  v1::AppendRequest open = OneAppend("run", "resting", 0);
  open.mutable_append()->clear_tensor();
  open.clear_payload();
  v1::AppendResponse opened;
  ASSERT_TRUE(resting->Write(open) && resting->Read(&opened));
  const auto hold = NewCall("attacker"), silent = NewCall("attacker");
  const auto holder = stub_->Append(hold.get());
  const auto nothing = stub_->Append(silent.get());
  v1::AppendRequest ask;
  ask.set_run("run");
  ask.set_want_bytes(60 * kMiB);
  v1::AppendResponse answer;
  ASSERT_TRUE(holder->Write(ask) && holder->Read(&answer));
  EXPECT_GT(answer.credit().granted_bytes(), 0u);
  EXPECT_FALSE(holder->Read(&answer));
  EXPECT_EQ(holder->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(nothing->Read(&answer));
  EXPECT_EQ(nothing->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(NewCall("other").get(), {}, &info).ok());
  EXPECT_EQ(info.reserved_bytes(), 0u);
  open.mutable_append()->set_sample("rested");
  EXPECT_TRUE(resting->Write(open) && resting->Read(&opened));
  EXPECT_EQ(opened.ack().error().code(), 0) << opened.ack().error().message();
}

// Long messages on many streams at once, without any credit.
TEST_F(AttackTest, MessagesWithoutCredit) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&, i] {
      const auto stub = v1::RoutingReplay::NewStub(server_->NewChannel());
      const auto call = NewCall("attacker");
      const auto stream = stub->Append(call.get());
      v1::AppendRequest request = OneAppend("run", absl::StrCat("flood/", i), 3);
      request.set_payload(std::string(7 * kMiB, '\1'));
      v1::AppendResponse answer;
      for (int k = 0; k < 2 && stream->Write(request); ++k) {
        if (!stream->Read(&answer)) break;
        EXPECT_EQ(answer.ack().error().code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      }
      stream->WritesDone();
      stream->Finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  bystander.Await(2);
  EXPECT_LT(PeakMemory() - before, 256 * kMiB);
}

TEST_F(AttackTest, OneRunTakesItsShareAlone) {
  Start({"--run-budget", "2MiB", "--run-streams", "2", "--max-deadline", "2s"});
  Bystander bystander(*server_);
  absl::Status status;
  for (int i = 0; status.ok() && i < 20; ++i) status = Put(OneAppend("run", absl::StrCat(i), 1 << 19));
  EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
  EXPECT_EQ(GetErrorDetail(status)->field, "run-budget");
  // Waiting reads are streams, too; a third one is refused, and those of the others are not.
  v1::ReadRequest wait;
  wait.set_run("run");
  wait.set_wait(true);
  wait.add_samples()->set_sample("0");
  v1::ReadResponse response;
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ReadResponse>>> readers;
  for (int i = 0; i < 2; ++i) {
    calls.push_back(std::make_unique<grpc::ClientContext>());  // Without a deadline.
    calls.back()->AddMetadata("authorization", "Bearer attacker");
    readers.push_back(stub_->Read(calls.back().get(), wait));
    readers.back()->WaitForInitialMetadata();
  }
  bystander.Await(2);
  for (const auto& reader : readers) {
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  v1::ServerInfo info;
  ASSERT_TRUE(stub_->GetServerInfo(NewCall("other").get(), {}, &info).ok());
  EXPECT_GT((*info.mutable_counters())["routing_replay_quota_refusals_total{quota=\"run_bytes\"}"], 0u);
}

// Samples of nothing but a name take memory, too.
TEST_F(AttackTest, AppendsWithoutPayloadTakeOfTheRunsShare) {
  Start({"--run-budget", "1MiB"});
  v1::AppendRequest empty = OneAppend("run", "", 3);
  empty.clear_payload();
  empty.mutable_append()->clear_tensor();
  empty.mutable_append()->set_rows(0);
  absl::Status status;
  for (int i = 0; status.ok() && i < 4000; ++i) {
    empty.mutable_append()->set_sample(absl::StrCat(i));
    status = Put(empty);
  }
  EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
  v1::ListRunsResponse runs;
  ASSERT_TRUE(stub_->ListRuns(NewCall("attacker").get(), {}, &runs).ok());
  EXPECT_LE(runs.runs(0).stored_bytes(), 1u << 20);
  EXPECT_GT(runs.runs(0).stored_bytes(), 1u << 19);
}

v1::AppendRequest Wish(const std::string& run, int64_t bytes) {
  v1::AppendRequest wish;
  wish.set_run(run);
  wish.set_want_bytes(bytes);
  return wish;
}

TEST_F(AttackTest, CreditTakesOfTheRunsShare) {
  Start({"--run-budget", "2MiB", "--stall-timeout", "1s"});
  Bystander bystander(*server_);
  ASSERT_TRUE(OpenRun(*stub_, "attacker", "second").ok());
  std::vector<std::unique_ptr<grpc::ClientContext>> calls;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::AppendRequest, v1::AppendResponse>>> streams;
  v1::AppendResponse answer;
  uint64_t granted = 0;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(NewCall("attacker"));
    streams.push_back(stub_->Append(calls.back().get()));
    // Neither a run that is not there nor another run makes it more.
    for (const char* run : {"run", "none", "run"}) {
      ASSERT_TRUE(streams.back()->Write(Wish(run, 60 * kMiB)) && streams.back()->Read(&answer));
      granted += answer.credit().granted_bytes();
    }
  }
  EXPECT_EQ(granted, 2u << 20);
  bystander.Await(2);
  // Messages that use nothing of it do not keep it.
  std::atomic<bool> ended{false};
  std::thread talker([&] {
    while (!ended && streams[0]->Write(Wish("run", 0))) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_FALSE(streams[0]->Read(&answer));
  ended = true;
  talker.join();
  EXPECT_EQ(streams[0]->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // Its share is there for the next.
  ASSERT_TRUE(streams[1]->Write(Wish("run", kMiB)) && streams[1]->Read(&answer));
  EXPECT_EQ(answer.credit().granted_bytes(), uint64_t{kMiB});
  for (auto& call : calls) call->TryCancel();
  for (size_t i = 1; i < streams.size(); ++i) streams[i]->Finish();
}

TEST_F(AttackTest, StreamsOfOneRunAreCounted) {
  Start({"--run-streams", "1"});
  ASSERT_TRUE(OpenRun(*stub_, "attacker", "second").ok());
  v1::AppendResponse answer;
  const auto first_call = NewCall("attacker"), second_call = NewCall("attacker"), third_call = NewCall("attacker");
  const auto first = stub_->Append(first_call.get());
  ASSERT_TRUE(first->Write(Wish("run", 1)) && first->Read(&answer));
  const auto second = stub_->Append(second_call.get());
  ASSERT_TRUE(second->Write(Wish("run", 1)));
  EXPECT_FALSE(second->Read(&answer));
  const absl::Status refused = FromGrpcStatus(second->Finish());
  EXPECT_THAT(refused, Fails(kExhausted, Reason::kOverBudget));
  EXPECT_EQ(GetErrorDetail(refused)->field, "run-streams");
  // Readers are counted apart, and a stream that goes on with another run leaves its place.
  v1::ReadRequest read;
  read.set_run("run");
  const auto read_call = NewCall("attacker");
  EXPECT_TRUE(stub_->Read(read_call.get(), read)->Finish().ok());
  ASSERT_TRUE(first->Write(Wish("second", 1)) && first->Read(&answer));
  const auto third = stub_->Append(third_call.get());
  ASSERT_TRUE(third->Write(Wish("run", 1)) && third->Read(&answer));
  EXPECT_EQ(answer.credit().granted_bytes(), 1u);
  for (auto* stream : {first.get(), third.get()}) {
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
}

}  // namespace
}  // namespace routing_replay::testing
