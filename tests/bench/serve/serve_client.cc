#include "tests/bench/serve/serve_client.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/serve/way.h"

namespace routing_replay::bench {
namespace {

constexpr uint8_t kPoison = 0x6E;

class ServeClient final : public Role {
 public:
  explicit ServeClient(const Transfer& transfer)
      : transfer_(transfer), sizes_(Transfer::Sizes()), data_(transfer), out_(transfer.bytes()) {}

  absl::StatusOr<std::string> Do(absl::Span<const std::string> command) override {
    if (command[0] == "open") return Done(Open(command));
    if (command[0] == "poison") return Done(Poison());
    if (command[0] == "check") return Done(Check());
    Way& way = *ways_.at(command[1]);
    if (command[0] == "small-put" || command[0] == "small-get") {
      return PlaySmall(way, command[0] == "small-put", std::atoll(command[2].c_str()));
    }
    const MessageSize& size = sizes_[std::atoi(command[2].c_str())];
    const int64_t number = std::atoll(command[3].c_str());
    if (command[0] == "prepare") return Done(way.Prepare(size, number));
    const auto start = std::chrono::steady_clock::now();
    absl::Status status = command[0] == "put" ? way.Put(size, number) : way.Get(size, number, out_.span());
    if (!status.ok()) return status;
    return absl::StrCat(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

 private:
  static absl::StatusOr<std::string> Done(const absl::Status& status) {
    if (!status.ok()) return status;
    return "";
  }

  absl::Status Open(absl::Span<const std::string> command) {
    const std::string &endpoint = command[1], &tls_endpoint = command[5], &cacert = command[6];
    absl::Status status = Add("tcp", ConnectTcp(std::atoi(command[2].c_str()), /*tls=*/false, transfer_, data_));
    status.Update(Add("openssl", ConnectTcp(std::atoi(command[3].c_str()), /*tls=*/true, transfer_, data_)));
    status.Update(Add("grpc", ConnectGrpc(std::atoi(command[4].c_str()), transfer_, data_)));
    status.Update(Add("service", ConnectService(endpoint, "grpc", "", transfer_, data_)));
    status.Update(Add("direct", ConnectService(endpoint, "direct", "", transfer_, data_)));
    status.Update(Add("direct-tls", ConnectService(tls_endpoint, "direct", cacert, transfer_, data_)));
    status.Update(Add("appender", ConnectAppender(endpoint, transfer_, data_)));
    return status;
  }
  absl::Status Add(const std::string& name, absl::StatusOr<std::unique_ptr<Way>> way) {
    if (!way.ok()) return way.status();
    ways_[name] = *std::move(way);
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> PlaySmall(Way& way, bool put, int64_t number) {
    constexpr int64_t kTimes = 200;
    std::vector<double> seconds;
    for (int64_t i = 0; i < kTimes; ++i) {
      const auto start = std::chrono::steady_clock::now();
      absl::Status status = put ? way.PutSmall(number * kTimes + i) : way.GetSmall(number * kTimes + i);
      if (!status.ok()) return status;
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + kTimes / 2, seconds.end());
    return absl::StrCat(seconds[kTimes / 2]);
  }

  absl::Status Poison() {
    std::fill_n(out_.data(), out_.size(), kPoison);
    return absl::OkStatus();
  }
  absl::Status Check() const {
    if (data_.blocks() == out_.span()) return absl::OkStatus();
    const auto differing = std::mismatch(data_.blocks().begin(), data_.blocks().end(), out_.data()).first;
    return absl::DataLossError(absl::StrCat("byte ", differing - data_.blocks().begin(), " came back changed"));
  }

  const Transfer transfer_;
  const std::vector<MessageSize> sizes_;
  const TransferData data_;
  Buffer out_;
  std::map<std::string, std::unique_ptr<Way>> ways_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Role>> MakeServeClient(const Transfer& transfer) {
  return std::make_unique<ServeClient>(transfer);
}

}  // namespace routing_replay::bench
