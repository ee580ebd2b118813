#include <utility>

#include "tests/bench/common/tcp_hub.h"
#include "tests/bench/serve/way.h"

namespace routing_replay::bench {
namespace {

class TcpWay final : public Way {
 public:
  TcpWay(HubConnection hub, const Transfer& transfer, const TransferData& data)
      : hub_(std::move(hub)), transfer_(transfer), data_(data) {}

  absl::Status Put(const MessageSize& size, int64_t) override {
    const int32_t first = FirstIndex(size);
    const int64_t bytes = Transfer::Bytes(size);
    for (int32_t i = 0; i < transfer_.Messages(size); ++i) {
      if (absl::Status status = hub_.Put(first + i, data_.blocks().subspan(i * bytes, bytes)); !status.ok()) {
        return status;
      }
    }
    return hub_.Sync();
  }

  absl::Status Get(const MessageSize& size, int64_t, absl::Span<uint8_t> out) override {
    return hub_.GetStored(FirstIndex(size), transfer_.Messages(size), out);
  }

  absl::Status PutSmall(int64_t) override { return hub_.Sync(); }

 private:
  int32_t FirstIndex(const MessageSize& wanted) const {
    int32_t index = 0;
    for (const MessageSize& size : Transfer::Sizes()) {
      if (size.bytes == wanted.bytes) break;
      index += transfer_.Messages(size);
    }
    return index;
  }

  HubConnection hub_;
  const Transfer transfer_;
  const TransferData& data_;
};

}  // namespace

std::vector<size_t> HubSizes(const Transfer& transfer) {
  std::vector<size_t> sizes;
  for (const MessageSize& size : Transfer::Sizes()) {
    sizes.insert(sizes.end(), transfer.Messages(size), Transfer::Bytes(size));
  }
  return sizes;
}

absl::StatusOr<std::unique_ptr<Way>> ConnectTcp(int port, bool tls, const Transfer& transfer,
                                                const TransferData& data) {
  auto hub = HubConnection::Connect(port, tls);
  if (!hub.ok()) return hub.status();
  return std::make_unique<TcpWay>(*std::move(hub), transfer, data);
}

}  // namespace routing_replay::bench
