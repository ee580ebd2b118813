#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/bench/store/side.h"

namespace routing_replay::bench {
namespace {

absl::Status FileError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

class File {
 public:
  explicit File(const std::string& path) : fd_(open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600)) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&&) = delete;
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

class FileSide final : public Side {
 public:
  FileSide(const Workload& workload, std::string directory) : workload_(workload), directory_(std::move(directory)) {}

  absl::Status Begin(int32_t) override {
    if (absl::Status status = End(); !status.ok()) return status;
    std::filesystem::create_directories(directory_);
    for (int caller = 0; caller < kStoreCallers; ++caller) {
      files_.emplace_back(absl::StrCat(directory_, "/", caller));
      if (files_.back().fd() < 0) return FileError("open");
    }
    return absl::OkStatus();
  }

  absl::Status Append(int32_t blocks_per_append) override {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      for (int32_t first = 0; first < workload_.blocks_per_sample(); first += blocks_per_append) {
        absl::Status status = AppendOne(files_[caller].fd(), sample, {first, first + blocks_per_append});
        if (!status.ok()) return status;
      }
      return absl::OkStatus();
    });
  }

  absl::Status Read() override {
    return ReadBlocks([](int32_t, int32_t, absl::Span<const uint8_t>) { return absl::OkStatus(); });
  }
  absl::Status Check() override {
    return ReadBlocks([this](int32_t sample, int32_t block, absl::Span<const uint8_t> bytes) {
      return bytes == workload_.Bytes(sample, block) ? absl::OkStatus() : Differs("file", sample, block);
    });
  }
  absl::Status End() override {
    files_.clear();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
    return absl::OkStatus();
  }

 private:
  absl::Status AppendOne(int fd, int32_t sample, RowRange blocks) const {
    std::vector<iovec> pieces;
    size_t size = 0;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const absl::Span<const uint8_t> bytes = workload_.Bytes(sample, static_cast<int32_t>(block));
      pieces.push_back({const_cast<uint8_t*>(bytes.data()), bytes.size()});
      size += bytes.size();
    }
    const ssize_t written = writev(fd, pieces.data(), static_cast<int>(pieces.size()));
    if (written != static_cast<ssize_t>(size)) return FileError("write");
    return fdatasync(fd) == 0 ? absl::OkStatus() : FileError("fdatasync");
  }

  template <typename Take>
  absl::Status ReadBlocks(const Take& take) {
    return workload_.ForEachSample([&](int caller, int32_t sample) {
      Buffer buffer(workload_.block_bytes());
      int64_t at = int64_t{sample / kStoreCallers} * workload_.blocks_per_sample() * workload_.block_bytes();
      for (int32_t block = 0; block < workload_.blocks_per_sample(); ++block, at += workload_.block_bytes()) {
        const ssize_t got = pread(files_[caller].fd(), buffer.data(), buffer.size(), at);
        if (got != static_cast<ssize_t>(buffer.size())) return FileError("read");
        if (absl::Status status = take(sample, block, buffer.span()); !status.ok()) return status;
      }
      return absl::OkStatus();
    });
  }

  const Workload& workload_;
  const std::string directory_;
  std::vector<File> files_;  // By caller: its samples, concatenated.
};

}  // namespace

std::unique_ptr<Side> NewFileSide(const Workload& workload, std::string directory) {
  return std::make_unique<FileSide>(workload, std::move(directory));
}

}  // namespace routing_replay::bench
