#include "server/store/rocksdb/rocks_space.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr int64_t kMostKept = int64_t{64} << 20;
constexpr int64_t kKeptPart = 8;
// An append goes to the log at once and to a file later.
constexpr int64_t kWrittenTwice = 2;

int64_t Kept(const std::string& path) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path, error);
  return error ? 0 : std::min<int64_t>(kMostKept, static_cast<int64_t>(space.capacity / kKeptPart));
}

}  // namespace

RocksSpace::RocksSpace(std::string path, std::shared_ptr<const rocksdb::WriteBufferManager> buffers)
    : path_(std::move(path)), buffers_(std::move(buffers)), kept_(Kept(path_)) {}

absl::StatusOr<ByteReservation> RocksSpace::Promise(int64_t bytes) {
  absl::StatusOr<ByteReservation> promised = promised_.Reserve(kWrittenTwice * bytes);
  if (!promised.ok()) return promised;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path_, error);
  if (error) return promised;  // RocksDB will say what is wrong with the disk.
  const int64_t unwritten = static_cast<int64_t>(buffers_->memory_usage());
  if (static_cast<int64_t>(space.available) >= kept_ + unwritten + promised_.used()) return promised;
  if (ended_.exchange(false)) {
    MutexLock lock(mutex_);
    wanted_ = true;
    changed_.NotifyAll();
  }
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the disk of ", path_, " is full: ", HumanBytes(static_cast<int64_t>(space.available)),
                                " are free, and ", HumanBytes(kept_ + unwritten),
                                " are kept for what must still be written; release samples, drop runs or make room"),
                   {.reason = Reason::kOverBudget});
}

void RocksSpace::Join(std::weak_ptr<SpaceUser> user) {
  MutexLock lock(mutex_);
  std::erase_if(users_, [](const auto& each) { return each.expired(); });
  users_.push_back(std::move(user));
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { Run(); });
}

void RocksSpace::Stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

std::vector<std::weak_ptr<SpaceUser>> RocksSpace::Users() {
  MutexLock lock(mutex_);
  while (!wanted_ && !stop_) changed_.Wait(mutex_);
  wanted_ = false;
  return users_;
}

void RocksSpace::Run() {
  while (!stop_) {
    for (const std::weak_ptr<SpaceUser>& each : Users()) {
      const std::shared_ptr<SpaceUser> user = each.lock();
      if (user != nullptr && !stop_ && !user->GiveBack(stop_).ok()) NoteEnd();
    }
  }
}

}  // namespace routing_replay::server
