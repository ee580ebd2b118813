#include "client/testing/fake_service.h"

#include <grpcpp/server_builder.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/message/message_fields.h"

namespace routing_replay::testing {
namespace {

constexpr int32_t kBlockRows = 64;

// A generated message, converted to the AppendRequest of our own code. Keeps the bytes to which the AppendRequest
// points.
struct Parsed {
  explicit Parsed(const v1::AppendRequest& message) : bytes(message.SerializeAsString()) {
    request = ParseAppendRequest(ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  }
  Parsed(const Parsed&) = delete;
  std::string bytes;
  absl::StatusOr<AppendRequest> request;
};

v1::AppendAck ToMessage(const AppendAck& ack) {
  v1::AppendAck message;
  message.ParseFromString(EncodeAppendAck(ack));
  return message;
}

absl::Status OverBudget() {
  ErrorDetail detail{.reason = Reason::kOverBudget};
  detail.retry_after_ms = 1;
  return MakeError(absl::StatusCode::kResourceExhausted, "no room", detail);
}

grpc::Status Broken() { return {grpc::StatusCode::UNAVAILABLE, "broken"}; }

void WaitForCancel(grpc::ServerContext& context) {
  while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

FakeService::FakeService(std::shared_ptr<FakeStore> store) : store_(std::move(store)) {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  endpoint_ = absl::StrCat("127.0.0.1:", port);
}

FakeService::~FakeService() { server_->Shutdown(std::chrono::system_clock::now()); }

void FakeService::OnAppend(std::function<Do(const AppendRequest&)> decide) {
  MutexLock lock(mutex_);
  decide_ = std::move(decide);
}

void FakeService::FailNext(int count) {
  MutexLock lock(mutex_);
  failures_ = count;
}

void FakeService::OnRead(std::function<bool(v1::ReadResponse&)> change) {
  MutexLock lock(mutex_);
  change_ = std::move(change);
}

void FakeService::BreakNextReads(int count) {
  MutexLock lock(mutex_);
  broken_reads_ = count;
}

ModelSample FakeService::Sample(const std::string& name) {
  MutexLock lock(store_->mutex);
  return store_->model.samples[name];
}

int FakeService::Calls(const std::string& method) {
  MutexLock lock(mutex_);
  return calls_[method];
}

size_t FakeService::Connections() {
  MutexLock lock(mutex_);
  return peers_.size();
}

grpc::Status FakeService::Begin(const std::string& method) {
  MutexLock lock(mutex_);
  ++calls_[method];
  if (failures_ == 0) return grpc::Status::OK;
  --failures_;
  return Broken();
}

Do FakeService::Decide(const AppendRequest& request) {
  MutexLock lock(mutex_);
  return decide_ ? decide_(request) : Do::kAnswer;
}

AppendAck FakeService::Apply(const AppendRequest& request, Do action) {
  if (action == Do::kReject) {
    return {.append_id = request.append->append_id, .sample = request.append->sample, .error = OverBudget()};
  }
  MutexLock lock(store_->mutex);
  return store_->model.Apply(request);
}

grpc::Status FakeService::OpenRun(grpc::ServerContext* context, const v1::OpenRunRequest* request,
                                  v1::OpenRunResponse* response) {
  if (grpc::Status status = Begin("OpenRun"); !status.ok()) return status;
  MutexLock lock(mutex_);
  peers_.insert(context->peer());
  *response->mutable_geometry() = request->has_geometry() ? request->geometry() : ToProto(ModelGeometry());
  *response->mutable_options() = request->options();
  response->mutable_options()->set_block_rows(kBlockRows);
  response->mutable_options()->set_codec(v1::CODEC_RAW);
  response->set_max_message_bytes(int64_t{64} << 20);
  response->set_max_payload_bytes(int64_t{256} << 20);
  return grpc::Status::OK;
}

grpc::Status FakeService::Append(grpc::ServerContext* context,
                                 grpc::ServerReaderWriter<v1::AppendResponse, v1::AppendRequest>* stream) {
  Begin("Append");
  v1::AppendRequest message;
  uint64_t credit = 0;
  while (stream->Read(&message)) {
    const Parsed parsed(message);
    if (!parsed.request.ok()) return ToGrpcStatus(parsed.request.status());
    const AppendRequest& request = *parsed.request;
    const Do action = Decide(request);
    if (action == Do::kHang) WaitForCancel(*context);
    if (action == Do::kLoseMessage || action == Do::kHang) return Broken();
    v1::AppendResponse response;
    if (request.append) {
      const bool is_free = static_cast<int64_t>(request.payload.size()) <= kFreePayloadBytes;
      if (request.payload.size() > credit && !is_free) return {grpc::StatusCode::INTERNAL, "sent without credit"};
      credit -= std::min<uint64_t>(credit, request.payload.size());
      *response.mutable_ack() = ToMessage(Apply(request, action));
    }
    if (request.want_bytes > 0) {
      response.mutable_credit();
      if (action == Do::kReject) {
        response.mutable_credit()->mutable_rejection()->ParseFromString(EncodeStreamStatus(OverBudget()));
      } else {
        response.mutable_credit()->set_granted_bytes(request.want_bytes);
        credit += request.want_bytes;
      }
    }
    if (action == Do::kLoseAnswer) return Broken();
    stream->Write(response);
  }
  return grpc::Status::OK;
}

grpc::Status FakeService::Put(grpc::ServerContext*, const v1::AppendRequest* request, v1::AppendAck* response) {
  if (grpc::Status status = Begin("Put"); !status.ok()) return status;
  const Parsed parsed(*request);
  if (!parsed.request.ok()) return ToGrpcStatus(parsed.request.status());
  const Do action = Decide(*parsed.request);
  if (action == Do::kLoseMessage) return Broken();
  const AppendAck ack = Apply(*parsed.request, action);
  if (action == Do::kLoseAnswer) return Broken();
  if (!ack.error.ok()) return ToGrpcStatus(ack.error);
  *response = ToMessage(ack);
  return grpc::Status::OK;
}

grpc::Status FakeService::Truncate(grpc::ServerContext*, const v1::TruncateRequest* request,
                                   v1::SampleState* response) {
  if (grpc::Status status = Begin("Truncate"); !status.ok()) return status;
  MutexLock lock(store_->mutex);
  ModelSample& sample = store_->model.samples[request->sample()];
  sample.rows.resize(request->rows());
  sample.num_tokens.reset();
  ++sample.revision;
  *response = ToProto(store_->model.State(request->sample()));
  return grpc::Status::OK;
}

grpc::Status FakeService::Stat(grpc::ServerContext* context, const v1::StatRequest* request,
                               v1::StatResponse* response) {
  if (grpc::Status status = Begin("Stat"); !status.ok()) return status;
  MutexLock lock(store_->mutex);
  for (const std::string& name : request->samples()) {
    if (store_->model.samples.count(name)) *response->add_found() = ToProto(store_->model.State(name));
  }
  return grpc::Status::OK;
}

// One sample per page.
grpc::Status FakeService::List(grpc::ServerContext*, const v1::ListRequest* request, v1::ListResponse* response) {
  if (grpc::Status status = Begin("List"); !status.ok()) return status;
  MutexLock lock(store_->mutex);
  for (auto it = store_->model.samples.upper_bound(request->page_token()); it != store_->model.samples.end(); ++it) {
    if (request->has_groups() &&
        (it->second.group < request->groups().begin() || it->second.group >= request->groups().end())) {
      continue;
    }
    *response->add_samples() = ToProto(store_->model.State(it->first));
    response->set_next_page_token(it->first);
    return grpc::Status::OK;
  }
  return grpc::Status::OK;
}

grpc::Status FakeService::GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo*) {
  return Begin("GetServerInfo");
}

grpc::Status FakeService::Release(grpc::ServerContext*, const v1::ReleaseRequest* request,
                                  v1::ReleaseResponse* response) {
  if (grpc::Status status = Begin("Release"); !status.ok()) return status;
  MutexLock lock(store_->mutex);
  uint64_t released = 0;
  for (const std::string& name : request->samples()) released += store_->model.samples.erase(name);
  for (const int64_t handle : request->handles()) {
    released += std::erase_if(store_->model.samples, [&](const auto& s) { return SampleHandle(s.first) == handle; });
  }
  response->set_samples(released);
  return grpc::Status::OK;
}

v1::ReadResponse FakeService::Answer(int index, const std::string& name) {
  MutexLock lock(store_->mutex);
  v1::ReadResponse response;
  v1::SampleRecord& record = *response.add_records();
  record.set_index(index);
  const auto found = store_->model.samples.find(name);
  record.set_status(found == store_->model.samples.end() ? v1::SampleRecord::NOT_FOUND : v1::SampleRecord::OK);
  if (found == store_->model.samples.end()) return response;
  const ModelSample& sample = found->second;
  const auto rows = static_cast<int64_t>(sample.rows.size());
  record.set_committed_rows(rows);
  if (sample.num_tokens) record.set_num_tokens(*sample.num_tokens);
  for (const RowRange window : SplitAtWindows({0, rows}, kBlockRows)) {
    std::string bytes;
    for (int64_t row = window.begin; row < window.end; ++row) bytes.push_back(static_cast<char>(*sample.rows[row].id));
    v1::Piece& piece = *response.add_pieces();
    piece.set_sample_index(index);
    piece.set_layer_count(1);
    piece.set_row_begin(window.begin);
    piece.set_rows(window.size());
    piece.set_codec(v1::CODEC_RAW);
    piece.set_bytes(window.size());
    piece.add_cut_crc32c(Crc32c({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
    response.mutable_payload()->append(bytes);
  }
  return response;
}

// Answers with one message per sample. Supports only reads of whole samples that have no unrecorded rows.
grpc::Status FakeService::Read(grpc::ServerContext* context, const v1::ReadRequest* request,
                               grpc::ServerWriter<v1::ReadResponse>* writer) {
  if (grpc::Status status = Begin("Read"); !status.ok()) return status;
  for (int i = 0; i < request->samples_size(); ++i) {
    v1::ReadResponse response = Answer(i, request->samples(i).sample());
    bool go_on = true, breaks = false;
    {
      MutexLock lock(mutex_);
      if (change_) go_on = change_(response);
      breaks = go_on && broken_reads_ > 0;
      broken_reads_ -= breaks ? 1 : 0;
    }
    if (!go_on) {
      WaitForCancel(*context);
      return grpc::Status::CANCELLED;
    }
    if (!writer->Write(response)) return grpc::Status::CANCELLED;
    if (breaks) return Broken();
  }
  return grpc::Status::OK;
}

}  // namespace routing_replay::testing
