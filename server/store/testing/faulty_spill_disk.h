// A disk that fails when a test says so.
#ifndef SERVER_STORE_TESTING_FAULTY_SPILL_DISK_H_
#define SERVER_STORE_TESTING_FAULTY_SPILL_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/mutex.h"
#include "server/store/spill/spill.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)

// Files in memory. Thread-safe.
class FaultySpillDisk final : public SpillDisk {
 public:
  // Writes fail with `status` from now on, unless it is OK; a failed write still writes half of its bytes.
  void FailWrites(absl::Status status) {
    MutexLock lock(mutex_);
    write_status_ = std::move(status);
  }
  void FailReads(absl::Status status) {
    MutexLock lock(mutex_);
    read_status_ = std::move(status);
  }
  // Changes a bit of every byte that is stored at `offset` of a file.
  void Damage(int64_t offset) {
    MutexLock lock(mutex_);
    for (auto& [name, bytes] : files_) {
      if (offset < static_cast<int64_t>(bytes.size())) bytes[offset] ^= 1;
    }
  }
  void Truncate() {
    MutexLock lock(mutex_);
    for (auto& [name, bytes] : files_) bytes.resize(bytes.size() / 2);
  }
  size_t files() const {
    MutexLock lock(mutex_);
    return files_.size();
  }
  int64_t bytes() const {
    MutexLock lock(mutex_);
    int64_t total = 0;
    for (const auto& [name, bytes] : files_) total += static_cast<int64_t>(bytes.size());
    return total;
  }

  absl::Status Write(const std::string& name, int64_t offset,
                     absl::Span<const absl::Span<const uint8_t>> parts) override {
    MutexLock lock(mutex_);
    std::vector<uint8_t>& file = files_[name];
    file.resize(offset);
    for (absl::Span<const uint8_t> part : parts) {
      if (!write_status_.ok()) part = part.subspan(0, part.size() / 2);
      file.insert(file.end(), part.begin(), part.end());
    }
    return write_status_;
  }
  absl::Status Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const override {
    MutexLock lock(mutex_);
    if (!read_status_.ok()) return read_status_;
    const auto file = files_.find(name);
    if (file == files_.end() || offset + bytes.size() > file->second.size())
      return absl::DataLossError("the file ends");
    std::copy_n(file->second.begin() + offset, bytes.size(), bytes.begin());
    return absl::OkStatus();
  }
  void Remove(const std::string& name) override {
    MutexLock lock(mutex_);
    files_.erase(name);
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::vector<uint8_t>> files_ ABSL_GUARDED_BY(mutex_);
  absl::Status write_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status read_status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::testing

#endif  // SERVER_STORE_TESTING_FAULTY_SPILL_DISK_H_
