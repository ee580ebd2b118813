#include "server/store/spill/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr char kLockName[] = "routing-replay-spill.lock";
// Prefix of every file written here, before the name that the caller gives it.
constexpr char kPrefix[] = "routing-replay-spill-";

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

absl::Status WriteFailure(const std::string& path) {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return absl::Status(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
                      absl::StrCat(path, ": ", std::strerror(error)));
}

absl::Status ReadFailure(const std::string& path) {
  const int error = errno;
  const bool lost = error == EIO || error == ENOENT;
  return absl::Status(lost ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable,
                      absl::StrCat(path, ": ", std::strerror(error)));
}

class SpillDirectory final : public SpillDisk {
 public:
  SpillDirectory(std::filesystem::path path, FileDescriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  absl::Status Write(const std::string& name, int64_t offset,
                     absl::Span<const absl::Span<const uint8_t>> parts) override;
  absl::Status Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const override;
  void Remove(const std::string& name) override { unlink(PathOf(name).c_str()); }

 private:
  std::string PathOf(const std::string& name) const { return path_ / absl::StrCat(kPrefix, name); }

  const std::filesystem::path path_;
  const FileDescriptor lock_;  // Held while the directory is open.
};

absl::Status SpillDirectory::Write(const std::string& name, int64_t offset,
                                   absl::Span<const absl::Span<const uint8_t>> parts) {
  const std::string path = PathOf(name);
  const FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file.ok()) return WriteFailure(path);
  std::vector<iovec> left;
  for (absl::Span<const uint8_t> part : parts) {
    if (!part.empty()) left.push_back({const_cast<uint8_t*>(part.data()), part.size()});
  }
  for (size_t first = 0; first < left.size();) {
    const auto count = static_cast<int>(std::min<size_t>(left.size() - first, IOV_MAX));
    ssize_t written = pwritev(file.get(), &left[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteFailure(path);
    offset += written;
    while (first < left.size() && written >= static_cast<ssize_t>(left[first].iov_len)) {
      written -= static_cast<ssize_t>(left[first++].iov_len);
    }
    if (written > 0) {
      left[first].iov_base = static_cast<uint8_t*>(left[first].iov_base) + written;
      left[first].iov_len -= written;
    }
  }
  return absl::OkStatus();
}

absl::Status SpillDirectory::Read(const std::string& name, int64_t offset, absl::Span<uint8_t> bytes) const {
  const std::string path = PathOf(name);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return ReadFailure(path);
  while (!bytes.empty()) {
    const ssize_t got = pread(file.get(), bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadFailure(path);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, " ends early, at byte ", offset));
    offset += got;
    bytes.remove_prefix(got);
  }
  return absl::OkStatus();
}

absl::Status RemoveLeftFiles(const std::filesystem::path& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (name == kLockName || !absl::StartsWith(name, kPrefix)) continue;
    if (unlink(entry.path().c_str()) != 0) return WriteFailure(entry.path());
  }
  return error ? absl::UnavailableError(absl::StrCat(path.string(), ": ", error.message())) : absl::OkStatus();
}

constexpr int64_t kAllocationOverhead = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<SpillDisk>> OpenSpillDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  const std::string lock_path = std::filesystem::path(path) / kLockName;
  FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.ok()) return WriteFailure(lock_path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is in use as spill directory by another process; give each server its own"));
  }
  RR_RETURN_IF_ERROR(RemoveLeftFiles(path));
  return std::make_shared<SpillDirectory>(path, std::move(lock));
}

SpillSegment::SpillSegment(std::shared_ptr<SpillArea> area)
    : area_(std::move(area)), name_(absl::StrCat(area_->next_segment++)) {}

absl::StatusOr<int64_t> SpillSegment::Append(absl::Span<const absl::Span<const uint8_t>> parts) {
  int64_t bytes = 0;
  for (absl::Span<const uint8_t> part : parts) bytes += static_cast<int64_t>(part.size());
  absl::StatusOr<ByteReservation> room = area_->space.Reserve(bytes);
  if (!room.ok()) return absl::ResourceExhaustedError("the spill directory has reached its limit (spill-budget)");
  RR_RETURN_IF_ERROR(area_->disk->Write(name_, size_, parts));
  const int64_t offset = size_;
  size_ += bytes;
  space_.Merge(*std::move(room));
  return offset;
}

absl::StatusOr<Buffer> SpillSegment::Read(int64_t offset, int64_t bytes, uint32_t crc32c) const {
  Buffer frame(bytes);
  RR_RETURN_IF_ERROR(area_->disk->Read(name_, offset, frame.span()));
  if (Crc32c(frame.span()) == crc32c) return frame;
  return absl::DataLossError(absl::StrCat("spilled bytes at ", offset, " of segment ", name_, " are damaged"));
}

absl::StatusOr<SpillFrame> SegmentWriter::Put(absl::Span<const absl::Span<const uint8_t>> parts) {
  uint32_t crc32c = 0;
  for (absl::Span<const uint8_t> part : parts) crc32c = Crc32cExtend(crc32c, part);
  MutexLock lock(mutex_);
  std::shared_ptr<SpillSegment> segment = open_.lock();
  if (segment == nullptr || segment->size() >= area_->segment_bytes) {
    segment = std::make_shared<SpillSegment>(area_);
  }
  RR_ASSIGN_OR_RETURN(const int64_t offset, segment->Append(parts));
  open_ = segment;
  return SpillFrame{std::move(segment), offset, crc32c};
}

class SpillHome::SpillableBlock final : public StoredBlock {
 public:
  // Memory that a spilled block takes.
  static int64_t SpilledCost() {
    return kAllocationOverhead + static_cast<int64_t>(sizeof(SpillableBlock) + sizeof(SpillFrame) + sizeof(RowPiece));
  }

  SpillableBlock(std::shared_ptr<BlockHome> home, Block block, int64_t cost)
      : StoredBlock(std::move(home), block.rows, block.codec, cost),
        resident_(std::make_shared<const Block>(std::move(block))) {}

  int64_t cost() const override {
    MutexLock lock(mutex());
    return StoredBlock::cost();
  }
  ByteReservation TakeCharge() override {
    MutexLock lock(mutex());
    return Uncharge();
  }
  int64_t spillable_bytes() const override {
    MutexLock lock(mutex());
    return resident_ == nullptr ? 0 : StoredBlock::cost() - SpilledCost();
  }

  absl::Status Spill() override {
    std::shared_ptr<const Block> resident;
    {
      MutexLock lock(mutex());
      resident = resident_;
    }
    if (resident == nullptr) return absl::OkStatus();
    RR_ASSIGN_OR_RETURN(SpillFrame frame, spill_home().Write(resident->view()));
    auto written = std::make_unique<const SpillFrame>(std::move(frame));
    ByteReservation freed;
    MutexLock lock(mutex());
    frame_ = std::move(written);
    resident_.reset();  // `resident` keeps the bytes alive until the lock is released.
    freed = ShrinkTo(SpilledCost());
    return absl::OkStatus();
  }

 private:
  SpillHome& spill_home() const { return static_cast<SpillHome&>(home()); }
  // This mutex also protects the cost and the charge.
  Mutex& mutex() const { return spill_home().MutexOf(this); }
  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    std::shared_ptr<const Block> resident;
    SpillFrame frame;
    {
      MutexLock lock(mutex());
      resident = resident_;
      if (resident == nullptr) frame = *frame_;
    }
    if (resident == nullptr) return spill_home().Read(frame, rows(), codec());
    const BlockView view = resident->view();
    return LoadedBlock{std::move(resident), view};
  }

  std::shared_ptr<const Block> resident_ ABSL_GUARDED_BY(mutex());
  std::unique_ptr<const SpillFrame> frame_ ABSL_GUARDED_BY(mutex());  // Set if resident_ is null.
};

int64_t SpillHome::Cost(const Geometry& geometry, int64_t rows, Codec codec) const {
  return MemoryHome::CostOf(geometry, rows, codec) + SpillableBlock::SpilledCost();
}

std::shared_ptr<StoredBlock> SpillHome::Keep(Block block, int64_t cost) {
  return std::make_shared<SpillableBlock>(shared_from_this(), std::move(block), cost);
}

absl::StatusOr<SpillFrame> SpillHome::Write(const BlockView& block) {
  absl::StatusOr<SpillFrame> frame = segments_.Put({CrcBytes(block.plane_crc32c), block.bytes});
  if (!frame.ok()) ++area_->counts.write_failures;
  return frame;
}

absl::StatusOr<LoadedBlock> SpillHome::Read(const SpillFrame& frame, RowRange rows, Codec codec) const {
  const int64_t bytes = ValueBytes(*geometry_, rows.size(), codec);
  absl::StatusOr<Buffer> read = frame.segment->Read(frame.offset, bytes, frame.crc32c);
  ++area_->counts.loads;
  if (absl::IsDataLoss(read.status())) {
    ++area_->counts.lost_blocks;
    return MakeError(absl::StatusCode::kDataLoss,
                     absl::StrCat("spilled block with rows ", ToString(rows), ": ", read.status().message()),
                     {.reason = Reason::kChecksum});
  }
  if (!read.ok()) return read.status();
  const auto owner = std::make_shared<const Buffer>(*std::move(read));
  return BlockOfValue(*geometry_, rows, codec, owner, owner->span());
}

}  // namespace routing_replay::server
