#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/common/tcp_socket.h"
#include "tests/bench/store/side.h"

namespace routing_replay::bench {
namespace {

constexpr absl::string_view kOk = "+OK\r\n";

absl::Span<const uint8_t> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class RedisSide final : public Side {
 public:
  RedisSide(const Workload& workload, int port)
      : workload_(workload),
        port_(port),
        value_bytes_(sizeof(uint32_t) * workload.geometry()->num_moe_layers() + workload.block_bytes()),
        value_head_(absl::StrCat("$", value_bytes_, "\r\n")) {}

  absl::Status Begin(int32_t) override {
    while (sockets_.size() < kStoreCallers) {
      absl::StatusOr<TcpSocket> socket = TcpSocket::Connect(port_);
      if (!socket.ok()) return socket.status();
      sockets_.push_back(*std::move(socket));
      answers_.emplace_back(workload_.blocks_per_sample() * AnswerBytes());
    }
    return Flush();
  }

  absl::Status Append(int32_t blocks_per_append) override {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      for (int32_t first = 0; first < workload_.blocks_per_sample(); first += blocks_per_append) {
        absl::Status status = Set(sockets_[caller], sample, first, blocks_per_append);
        if (!status.ok()) return status;
      }
      return absl::OkStatus();
    });
  }

  absl::Status Read() override {
    return workload_.ForEachSample([&](int caller, int32_t sample) { return Get(caller, sample); });
  }
  absl::Status Check() override {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      if (absl::Status status = Get(caller, sample); !status.ok()) return status;
      const uint8_t* answer = answers_[caller].data();
      for (int32_t block = 0; block < workload_.blocks_per_sample(); ++block, answer += AnswerBytes()) {
        const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, block);
        const uint8_t* value = answer + AnswerBytes() - 2 - bytes.size();
        const bool same = std::memcmp(answer, value_head_.data(), value_head_.size()) == 0 &&
                          std::memcmp(value, bytes.data(), bytes.size()) == 0;
        if (!same) return Differs("redis", sample, block);
      }
      return absl::OkStatus();
    });
  }
  absl::Status End() override { return Flush(); }

 private:
  size_t AnswerBytes() const { return value_head_.size() + value_bytes_ + 2; }
  static std::string Key(int32_t sample, int32_t block) { return absl::StrCat("bench:{", sample, "}:", block); }

  absl::Status Flush() {
    if (absl::Status status = sockets_[0].Send(BytesOf("FLUSHALL SYNC\r\n")); !status.ok()) return status;
    return Await(sockets_[0], 1);
  }

  absl::Status Set(TcpSocket& socket, int32_t sample, int32_t first, int32_t count) const {
    std::vector<std::string> heads;
    std::vector<absl::Span<const uint8_t>> pieces;
    for (int32_t block = first; block < first + count; ++block) {
      const std::string key = Key(sample, block);
      heads.push_back(absl::StrCat("*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key, "\r\n", value_head_));
    }
    for (int32_t i = 0; i < count; ++i) {
      const std::vector<uint32_t>& crcs = workload_.Crcs(sample, first + i);
      pieces.push_back(BytesOf(heads[i]));
      pieces.push_back({reinterpret_cast<const uint8_t*>(crcs.data()), crcs.size() * sizeof(uint32_t)});
      pieces.push_back(workload_.Bytes(sample, first + i));
      pieces.push_back(BytesOf("\r\n"));
    }
    if (absl::Status status = socket.SendAll(pieces); !status.ok()) return status;
    return Await(socket, count);
  }

  static absl::Status Await(TcpSocket& socket, int32_t count) {
    std::string answers(count * kOk.size(), '\0');
    auto* const bytes = reinterpret_cast<uint8_t*>(answers.data());
    if (absl::Status status = socket.Receive({bytes, answers.size()}); !status.ok()) return status;
    for (int32_t i = 0; i < count; ++i) {
      if (answers.compare(i * kOk.size(), kOk.size(), kOk.data()) != 0) return absl::InternalError(answers);
    }
    return absl::OkStatus();
  }

  absl::Status Get(int caller, int32_t sample) {
    std::string gets;
    for (int32_t block = 0; block < workload_.blocks_per_sample(); ++block) {
      const std::string key = Key(sample, block);
      absl::StrAppend(&gets, "*2\r\n$3\r\nGET\r\n$", key.size(), "\r\n", key, "\r\n");
    }
    if (absl::Status status = sockets_[caller].Send(BytesOf(gets)); !status.ok()) return status;
    return sockets_[caller].Receive(answers_[caller].span());
  }

  const Workload& workload_;
  const int port_;
  const size_t value_bytes_;
  const std::string value_head_;
  std::vector<TcpSocket> sockets_;  // By caller.
  std::vector<Buffer> answers_;     // By caller: replies to the GETs of one sample.
};

}  // namespace

std::unique_ptr<Side> NewRedisSide(const Workload& workload, int port) {
  return std::make_unique<RedisSide>(workload, port);
}

}  // namespace routing_replay::bench
