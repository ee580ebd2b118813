#include "tests/bench/handoff/tcp_hub.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/handoff/digest.h"

namespace routing_replay::bench {
namespace {

enum class Operation : int32_t { kPut, kSync, kGet };

struct Request {
  Operation operation = Operation::kPut;
  int32_t index = 0;
};

absl::Span<const uint8_t> AsBytes(const Request& request) {
  return {reinterpret_cast<const uint8_t*>(&request), sizeof(request)};
}

class TcpHub final : public Role {
 public:
  TcpHub(const HandoffScenario& scenario, TcpListener listener) : listener_(std::move(listener)) {
    for (int32_t i = 0; i < scenario.samples(); ++i) stored_.push_back(scenario.MakeSample(i));
    for (int32_t rank = 0; rank < kRanks; ++rank) ready_.push_back(scenario.ExpectedArray(PlaceOf(rank), stored_));
    for (std::vector<uint8_t>& sample : stored_) std::fill(sample.begin(), sample.end(), 0);
    std::thread([this] { Accept(); }).detach();
  }

  absl::StatusOr<std::string> Do(absl::Span<const std::string>) override {
    std::string answer = absl::StrCat(listener_.port());
    for (const std::vector<uint8_t>& array : ready_) {
      Sha256 digest;
      digest.Add(array);
      absl::StrAppend(&answer, " ", digest.Finish());
    }
    return answer;
  }

 private:
  void Accept() {
    for (auto socket = listener_.Accept(); socket.ok(); socket = listener_.Accept()) {
      std::thread([this, s = *std::move(socket)]() mutable {
        while (Serve(s).ok()) {
        }
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
    }
    return absl::InternalError("unknown operation");
  }

  TcpListener listener_;
  std::vector<std::vector<uint8_t>> stored_;  // Per sample.
  std::vector<std::vector<uint8_t>> ready_;   // Per rank.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeTcpHub(const HandoffScenario& scenario) {
  absl::StatusOr<TcpListener> listener = TcpListener::Listen();
  if (!listener.ok()) return listener.status();
  return std::make_unique<TcpHub>(scenario, *std::move(listener));
}

absl::StatusOr<HubConnection> HubConnection::Connect(int port) {
  absl::StatusOr<TcpSocket> socket = TcpSocket::Connect(port);
  if (!socket.ok()) return socket.status();
  return HubConnection(*std::move(socket));
}

absl::Status HubConnection::Put(int32_t sample, absl::Span<const uint8_t> bytes) {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kPut, sample})); !status.ok()) return status;
  return socket_.Send(bytes);
}

absl::Status HubConnection::Sync() {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kSync, 0})); !status.ok()) return status;
  Request answer;
  return socket_.Receive({reinterpret_cast<uint8_t*>(&answer), sizeof(answer)});
}

absl::Status HubConnection::Get(int32_t rank, absl::Span<uint8_t> out) {
  if (absl::Status status = socket_.Send(AsBytes({Operation::kGet, rank})); !status.ok()) return status;
  return socket_.Receive(out);
}

}  // namespace routing_replay::bench
