// Requests of a tenant with a valid token to a real server. Checks the answers that SECURITY.md states, the server's
// memory, and that another client is still served.
#include <zstd.h>

#include "absl/strings/escaping.h"
#include "routing_replay/wire/sample.h"
#include "tests/security/attack_fixture.h"

namespace routing_replay::testing {
namespace {

constexpr int64_t kGiB = 1 << 30;

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
  // First a valid frame that does not state its size; then invalid payloads: two frames, a skippable frame, no frame.
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

// A client without a token sends a megabyte that gRPC would decompress to a gigabyte.
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
       {npy("{'descr': '|O', " + rest),  // NumPy arrays of objects are pickles.
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
  // Values that would become valid if they wrapped in a narrower type.
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
    const bool too_long = name.size() > 64 << 10;  // The server does not read the request.
    EXPECT_EQ(FromGrpcStatus(OpenRun(*stub_, "attacker", name)).code(),
              too_long ? absl::StatusCode::kResourceExhausted : kInvalid);
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
  EXPECT_EQ(response.records(0).status(), v1::SampleRecord::VERSION_REJECTED);
  EXPECT_EQ(response.pieces_size(), 0);
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_TRUE(reader->Finish().ok());
}

// Requests that are small on the wire but large as objects.
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

TEST_F(AttackTest, RunsAreCounted) {
  Start({"--max-runs", "4"});  // One run exists already.
  for (const char* run : {"a", "b", "c"}) EXPECT_TRUE(OpenRun(*stub_, "attacker", run).ok());
  for (const char* run : {"d", "e"}) {
    const absl::Status status = FromGrpcStatus(OpenRun(*stub_, "attacker", run));
    EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
    EXPECT_EQ(GetErrorDetail(status)->field, "max-runs");
  }
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "a").ok());  // Exists already.
  v1::DropRunRequest drop;
  drop.set_run("b");
  v1::DropRunResponse dropped;
  EXPECT_TRUE(stub_->DropRun(NewCall("attacker").get(), drop, &dropped).ok());
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "d").ok());
}

// A token may create a limited number of runs, so that other tokens can create runs, too.
TEST_F(AttackTest, RunsOfATokenAreCounted) {
  Start();
  server_->SetTokens({{.token = "attacker", .runs = "a-, a-b, run", .more = ", max_runs: 3"}, {.token = "other"}});
  for (const char* run : {"a-b1", "a-"}) EXPECT_TRUE(OpenRun(*stub_, "attacker", run).ok()) << run;
  for (const char* run : {"a-0", "a-b2", "run2"}) {
    const absl::Status status = FromGrpcStatus(OpenRun(*stub_, "attacker", run));
    EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget)) << run;
    EXPECT_EQ(GetErrorDetail(status)->field, "max_runs");
  }
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "a-b1").ok());  // Exists already.
  for (const char* run : {"b", "zz", "a-0"}) EXPECT_TRUE(OpenRun(*stub_, "other", run).ok()) << run;
  for (const char* run : {"a-0", "a-b1"}) {
    v1::DropRunRequest drop;
    drop.set_run(run);
    v1::DropRunResponse dropped;
    EXPECT_TRUE(stub_->DropRun(NewCall("attacker").get(), drop, &dropped).ok());
  }
  EXPECT_TRUE(OpenRun(*stub_, "attacker", "a-c").ok());
  EXPECT_FALSE(OpenRun(*stub_, "attacker", "a-d").ok());
}

// The number of samples in a long read request. The server has memory for five waiting requests of this size, but not
// for six.
constexpr int kLong = 45'000 * sizeof(SampleRead) / (sizeof(SampleRead) + sizeof(v1::SampleRead) + sizeof(void*));

v1::ReadRequest Long(v1::ReadRequest read) {
  while (read.samples_size() < kLong) read.add_samples();
  return read;
}

struct Reading {
  std::unique_ptr<grpc::ClientContext> call;
  std::unique_ptr<grpc::ClientReader<v1::ReadResponse>> reader;
};
Reading Begin(GuardedServer::Stub& stub, const char* token, const v1::ReadRequest& request) {
  Reading reading{.call = NewCall(token)};
  reading.reader = stub.Read(reading.call.get(), request);
  return reading;
}

int64_t Counted(const v1::ServerInfo& info, const char* name) {
  const auto found = info.counters().find(absl::StrCat("routing_replay_", name));
  return found == info.counters().end() ? 0 : found->second;
}
constexpr char kNoRoom[] = "quota_rejections_total{quota=\"waiting_reads\"}";
constexpr char kNotReady[] = "read_samples_total{status=\"NOT_READY\"}";

// Long requests of one run wait for a sample that is never sealed. They use all the room, until another run needs some.
TEST_F(AttackTest, WaitingRequestsAreBounded) {
  Start();
  Bystander bystander(*server_);
  const int64_t before = PeakMemory();
  ASSERT_OK(Put(OneAppend("run", "open", 3)));
  v1::ReadRequest read = Long(WaitFor("run", "open"));
  read.mutable_samples(0)->set_num_tokens(100);
  constexpr int kLongest = 200'000;
  std::vector<Reading> waiting;
  const auto begin = [&](const char* token, const v1::ReadRequest& request) {
    waiting.push_back(Begin(*stub_, token, request));
  };
  for (int i = 0; i < 8; ++i) begin("attacker", read);
  Await([&] { return Counted(Info(), kNoRoom) == 3; });
  v1::ReadResponse response;
  const auto rejection = [&] {
    EXPECT_FALSE(waiting.back().reader->Read(&response));
    return FromGrpcStatus(waiting.back().reader->Finish());
  };
  begin("attacker", read);
  const absl::Status full = rejection();
  EXPECT_THAT(full, Fails(kExhausted, Reason::kOverBudget));
  EXPECT_EQ(GetErrorDetail(full)->field, "waiting-reads");
  // The largest accepted requests.
  while (read.samples_size() < kLongest) read.add_samples();
  for (int i = 0; i < 12; ++i) begin("attacker", read);
  EXPECT_THAT(rejection(), Fails(kExhausted, Reason::kOverBudget));
  EXPECT_LT(PeakMemory() - before, 160 * kMiB);  // Without a bound it would be at least 12 times 27 MiB.

  // Another run that waits gets room, and its read gets its rows.
  ASSERT_TRUE(OpenRun(*stub_, "other", "theirs").ok());
  v1::AppendRequest part = OneAppend("theirs", "sample", 3);
  v1::AppendAck ack;
  ASSERT_TRUE(stub_->Put(NewCall("other").get(), part, &ack).ok());
  v1::ReadRequest wait = Long(WaitFor("theirs", "sample"));
  wait.mutable_samples(0)->set_num_tokens(4);
  begin("other", wait);
  Await([&] { return Counted(Info(), kNotReady) > 0; });
  part.mutable_append()->set_row_start(3);
  part.mutable_append()->set_rows(0);
  part.mutable_append()->clear_tensor();
  part.clear_payload();
  part.mutable_append()->set_seal_num_tokens(4);
  ASSERT_TRUE(stub_->Put(NewCall("other").get(), part, &ack).ok());
  ASSERT_TRUE(waiting.back().reader->Read(&response));
  EXPECT_EQ(response.records(0).status(), v1::SampleRecord::OK);
  bystander.Await(2);
  for (Reading& one : waiting) one.call->TryCancel();
}

// The number of reads that wait is limited. A read counts only while it has nothing to send: as soon as it sends,
// another read may wait in its place, however slow its reader is. If the read must wait again later and no place is
// free, it still continues to its end.
TEST_F(AttackTest, WaitingTakesNothingBack) {
  Start();
  ASSERT_TRUE(OpenRun(*stub_, "other", "theirs").ok());
  constexpr int kRows = 1000;
  const auto put = [&](const char* token, const char* run, const char* sample, bool seal) {
    v1::AppendRequest append = OneAppend(run, sample, kRows);
    if (seal) append.mutable_append()->set_seal_num_tokens(kRows + 1);
    v1::AppendAck ack;
    EXPECT_TRUE(stub_->Put(NewCall(token).get(), append, &ack).ok());
  };
  put("attacker", "run", "open", false);
  put("attacker", "run", "done", true);
  std::vector<Reading> waiting;
  for (int i = 0; i < 6; ++i) waiting.push_back(Begin(*stub_, "attacker", Long(WaitFor("run", "open"))));
  Await([&] { return Counted(Info(), kNoRoom) == 1; });

  v1::ReadRequest both = WaitFor("run", "done");
  both.add_samples()->set_sample("open");
  both = Long(both);
  v1::ReadResponse response;
  Reading without_place = Begin(*stub_, "attacker", both);
  for (const auto status : {v1::SampleRecord::OK, v1::SampleRecord::NOT_READY}) {
    ASSERT_TRUE(without_place.reader->Read(&response));
    EXPECT_EQ(response.records(0).status(), status);
  }
  while (without_place.reader->Read(&response)) continue;
  EXPECT_TRUE(without_place.reader->Finish().ok());

  put("other", "theirs", "sample", false);
  v1::ReadRequest slow = Long(WaitFor("theirs", "sample"));  // Longer than a reader may take nothing.
  slow.mutable_samples()->DeleteSubrange(slow.samples_size() / 2, slow.samples_size() - slow.samples_size() / 2);
  for (int i = 1; i < slow.samples_size(); ++i) slow.mutable_samples(i)->set_sample("sample");
  waiting.push_back(Begin(*stub_, "other", slow));
  Await([&] { return Counted(Info(), kNotReady) == 2; });
  v1::SealRequest seal;
  seal.set_run("theirs");
  seal.set_sample("sample");
  seal.set_num_tokens(kRows + 1);
  v1::SampleState state;
  ASSERT_TRUE(stub_->Seal(NewCall("other").get(), seal, &state).ok());
  ASSERT_TRUE(waiting.back().reader->Read(&response));  // Nothing more is sent.
  EXPECT_EQ(response.records(0).status(), v1::SampleRecord::OK);
  const int64_t without_room = Counted(Info(), kNoRoom);
  Reading with_place{.call = NewCall("attacker")};
  with_place.call->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  with_place.reader = stub_->Read(with_place.call.get(), both);
  while (with_place.reader->Read(&response)) continue;
  EXPECT_EQ(Counted(Info(), kNoRoom), without_room);
  for (Reading& one : waiting) one.call->TryCancel();
}

}  // namespace
}  // namespace routing_replay::testing
