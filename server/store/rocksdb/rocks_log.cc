#include "server/store/rocksdb/rocks_log.h"

#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <string>

#include "absl/strings/ascii.h"

namespace routing_replay::server {
namespace {

constexpr size_t kLongestLine = 1024;

class RocksLog final : public rocksdb::Logger {
 public:
  RocksLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[kLongestLine];
    std::vsnprintf(line, sizeof(line), format, arguments);
    spdlog::warn("rocksdb store: {}", std::string(absl::StripTrailingAsciiWhitespace(line)));
  }
  // What RocksDB says of itself at its start.
  void LogHeader(const char*, va_list) override {}
};

}  // namespace

std::shared_ptr<rocksdb::Logger> NewRocksLog() { return std::make_shared<RocksLog>(); }

}  // namespace routing_replay::server
