#include "tests/security/guarded_server.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

constexpr std::chrono::seconds kPatience(20);

std::string Hash(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)});
}

// Sends one message on an Append stream. Returns the status of the stream or, if that is OK, the error in the ack.
grpc::Status AppendOnce(GuardedServer::Stub& stub, grpc::ClientContext& context, const std::string& run) {
  const auto stream = stub.Append(&context);
  v1::AppendRequest request;
  request.set_run(run);
  request.mutable_append()->set_sample("streamed");
  stream->Write(request);
  v1::AppendResponse response;
  const bool answered = stream->Read(&response);
  stream->WritesDone();
  const grpc::Status end = stream->Finish();
  if (!answered || !end.ok()) return end;
  const v1::Status& error = response.ack().error();
  // Converts the error in the ack to the status that Put would have returned.
  return grpc::Status(static_cast<grpc::StatusCode>(error.code()), error.message());
}

grpc::Status ReadOnce(GuardedServer::Stub& stub, grpc::ClientContext& context, const std::string& run) {
  v1::ReadRequest request;
  request.set_run(run);
  request.add_samples()->set_sample("sample");
  const auto reader = stub.Read(&context, request);
  v1::ReadResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

void SetGeometry(v1::RoutingGeometry& geometry) {
  geometry.set_num_layers(1);
  geometry.add_moe_layer_ids(0);
  geometry.add_num_experts(4);
  geometry.add_top_k(1);
}

template <typename Request, typename Response>
AnyCall Unary(
    const std::string& name,
    grpc::Status (GuardedServer::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
    std::function<void(Request&)> fill = [](Request&) {}) {
  return {name, [=](GuardedServer::Stub& stub, grpc::ClientContext& context, const std::string& run) {
            Request request;
            if constexpr (requires { request.set_run(run); }) request.set_run(run);
            fill(request);
            Response response;
            return (stub.*method)(&context, request, &response);
          }};
}

}  // namespace

void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0) << path;
}

std::string TokenFileText(const std::vector<TestToken>& tokens) {
  std::string text = tokens.empty() ? "[]" : "";
  for (const TestToken& t : tokens) {
    absl::StrAppend(&text, "- {name: test, sha256: ", Hash(t.token), ", runs: [", t.runs, "], scopes: [", t.scopes, "]",
                    t.more, "}\n");
  }
  return text;
}

GuardedServer::GuardedServer(const std::vector<TestToken>& tokens, std::vector<std::string> flags, bool encrypted,
                             const std::string& program)
    : encrypted_(encrypted) {
  SetTokens(tokens);
  flags.insert(flags.end(), {"--token-file", path("tokens.yaml")});
  if (encrypted_) {
    SetIdentity(authority_.Issue(kLocalNames));
    flags.insert(flags.end(), {"--tls-cert", path("server.crt"), "--tls-key", path("server.key")});
  }
  auto process = StartServerProcess(program, flags);
  EXPECT_TRUE(process.ok()) << process.status();
  process_ = *std::move(process);
}

std::shared_ptr<grpc::ChannelCredentials> GuardedServer::credentials() const {
  if (!encrypted_) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = authority_.certificate()});
}

std::shared_ptr<grpc::Channel> GuardedServer::NewChannel() const { return NewChannel(credentials()); }

std::shared_ptr<grpc::Channel> GuardedServer::NewChannel(
    const std::shared_ptr<grpc::ChannelCredentials>& credentials) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(process_.endpoint, credentials, arguments);
}

void GuardedServer::SetTokens(const std::vector<TestToken>& tokens) const {
  ReplaceFile(path("tokens.yaml"), TokenFileText(tokens));
}

void GuardedServer::SetIdentity(const TestIdentity& identity) const {
  ReplaceFile(path("server.key"), identity.key);
  ReplaceFile(path("server.crt"), identity.certificate);
}

void Await(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(done());
}

std::unique_ptr<grpc::ClientContext> NewCall(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  return context;
}

grpc::Status OpenRun(GuardedServer::Stub& stub, const std::string& token, const std::string& run) {
  v1::OpenRunRequest request;
  request.set_run(run);
  SetGeometry(*request.mutable_geometry());
  v1::OpenRunResponse response;
  return stub.OpenRun(NewCall(token).get(), request, &response);
}

v1::AppendRequest OneAppend(const std::string& run, const std::string& sample, int rows) {
  v1::AppendRequest request;
  request.set_run(run);
  v1::AppendHeader& append = *request.mutable_append();
  append.set_sample(sample);
  append.set_rows(rows);
  append.mutable_tensor()->set_encoding(v1::TensorPayload::RAW);
  append.mutable_tensor()->set_dtype(v1::TensorPayload::U8);
  for (const int axis : {rows, 1, 1}) append.mutable_tensor()->add_shape(axis);
  append.mutable_tensor()->set_layer_basis(v1::TensorPayload::MOE_LAYERS);
  request.set_payload(std::string(rows, '\1'));
  return request;
}

const std::vector<AnyCall>& EveryCall() {
  using Stub = GuardedServer::Stub;
  static const std::vector<AnyCall> calls = {
      Unary<v1::OpenRunRequest, v1::OpenRunResponse>(
          "OpenRun with a geometry", &Stub::OpenRun,
          [](v1::OpenRunRequest& request) { SetGeometry(*request.mutable_geometry()); }),
      Unary<v1::OpenRunRequest, v1::OpenRunResponse>("OpenRun without a geometry", &Stub::OpenRun),
      Unary<v1::OpenRunRequest, v1::OpenRunResponse>("OpenRun with resume_at", &Stub::OpenRun,
                                                     [](v1::OpenRunRequest& request) { request.set_resume_at(1000); }),
      {"Append", AppendOnce},
      Unary<v1::AppendRequest, v1::AppendAck>(
          "Put", &Stub::Put, [](v1::AppendRequest& request) { request = OneAppend(request.run(), "sample", 3); }),
      Unary<v1::SealRequest, v1::SampleState>("Seal", &Stub::Seal,
                                              [](v1::SealRequest& request) {
                                                request.set_sample("sample");
                                                request.set_num_tokens(4);
                                              }),
      Unary<v1::TruncateRequest, v1::SampleState>("Truncate", &Stub::Truncate,
                                                  [](v1::TruncateRequest& request) { request.set_sample("sample"); }),
      {"Read", ReadOnce},
      Unary<v1::StatRequest, v1::StatResponse>("Stat", &Stub::Stat,
                                               [](v1::StatRequest& request) { request.add_samples("sample"); }),
      Unary<v1::ListRequest, v1::ListResponse>("List", &Stub::List),
      Unary<v1::ReleaseRequest, v1::ReleaseResponse>("Release", &Stub::Release),
      Unary<v1::DropRunRequest, v1::DropRunResponse>("DropRun", &Stub::DropRun),
      Unary<v1::ListRunsRequest, v1::ListRunsResponse>("ListRuns", &Stub::ListRuns),
      Unary<v1::GetServerInfoRequest, v1::ServerInfo>("GetServerInfo", &Stub::GetServerInfo),
      Unary<v1::OpenDirectRequest, v1::OpenDirectResponse>("OpenDirect", &Stub::OpenDirect),
  };
  return calls;
}

}  // namespace routing_replay::testing
