#include "tests/bench/common/tcp_hub.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

enum class Operation : int32_t { kPut, kSync, kGet, kGetStored };

struct Request {
  Operation operation = Operation::kPut;
  int32_t index = 0;
};

absl::Span<const uint8_t> AsBytes(const Request& request) {
  return {reinterpret_cast<const uint8_t*>(&request), sizeof(request)};
}

class TcpHub final : public Role {
 public:
  TcpHub(const std::vector<size_t>& stored_sizes, std::vector<std::vector<uint8_t>> ready, TlsFiles tls,
         TcpListener listener)
      : tls_(std::move(tls)), listener_(std::move(listener)), ready_(std::move(ready)) {
    for (const size_t size : stored_sizes) stored_.emplace_back(size);
    std::thread([this] { Accept(); }).detach();
  }

  absl::StatusOr<std::string> Do(absl::Span<const std::string>) override { return absl::StrCat(listener_.port()); }

 private:
  void Accept() {
    for (auto socket = listener_.Accept(); socket.ok(); socket = listener_.Accept()) {
      std::thread([this, s = *std::move(socket)]() mutable {
        absl::Status status = tls_.certificate.empty() ? absl::OkStatus() : s.StartTls(tls_);
        while (status.ok()) status = Serve(s);
      }).detach();
    }
  }

  absl::Status Serve(TcpSocket& socket) {
    Request request;
    absl::Status status = socket.Receive({reinterpret_cast<uint8_t*>(&request), sizeof(request)});
    if (!status.ok()) return status;
    switch (request.operation) {
      case Operation::kPut:
        return socket.Receive(absl::MakeSpan(stored_[request.index]));
      case Operation::kSync:
        return socket.Send(AsBytes(request));
      case Operation::kGet:
        return socket.Send(ready_[request.index]);
      case Operation::kGetStored:
        return socket.Send(stored_[request.index]);
    }
    return absl::InternalError("unknown operation");
  }

  const TlsFiles tls_;
  TcpListener listener_;
  std::vector<std::vector<uint8_t>> stored_;
  const std::vector<std::vector<uint8_t>> ready_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeTcpHub(const std::vector<size_t>& stored_sizes,
                                                 std::vector<std::vector<uint8_t>> ready, TlsFiles tls) {
  absl::StatusOr<TcpListener> listener = TcpListener::Listen();
  if (!listener.ok()) return listener.status();
  return std::make_unique<TcpHub>(stored_sizes, std::move(ready), std::move(tls), *std::move(listener));
}

absl::StatusOr<HubConnection> HubConnection::Connect(int port, bool tls) {
  absl::StatusOr<TcpSocket> socket = TcpSocket::Connect(port);
  if (!socket.ok()) return socket.status();
  if (absl::Status status = tls ? socket->StartTls({}) : absl::OkStatus(); !status.ok()) return status;
  return HubConnection(*std::move(socket));
}

absl::Status HubConnection::Put(int32_t index, absl::Span<const uint8_t> bytes) {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kPut, index})); !status.ok()) return status;
  return socket_.Send(bytes);
}

absl::Status HubConnection::Sync() {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kSync, 0})); !status.ok()) return status;
  Request answer;
  return socket_.Receive({reinterpret_cast<uint8_t*>(&answer), sizeof(answer)});
}

absl::Status HubConnection::Get(int32_t index, absl::Span<uint8_t> out) {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kGet, index})); !status.ok()) return status;
  return socket_.Receive(out);
}

absl::Status HubConnection::GetStored(int32_t first, int32_t count, absl::Span<uint8_t> out) {
  for (int32_t i = 0; i < count; ++i) {
    if (absl::Status status = socket_.Send(AsBytes({Operation::kGetStored, first + i})); !status.ok()) return status;
  }
  return socket_.Receive(out);
}

}  // namespace routing_replay::bench
