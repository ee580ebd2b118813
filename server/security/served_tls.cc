#include "server/security/served_tls.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

absl::Status NoMemoryFile() {
  return absl::UnavailableError(absl::StrCat("a file in memory for the TLS keys: ", std::strerror(errno)));
}

// -1 and errno where there can be none. Nobody runs it: systems that allow memory files which cannot be run alone
// (vm.memfd_noexec=2) want that said, and those before Linux 6.3 do not know the word.
int NewMemoryFile() {
  constexpr char kName[] = "routing-replay-tls";
  constexpr unsigned int kNeverRun = 0x8;  // MFD_NOEXEC_SEAL
  const int fd = memfd_create(kName, MFD_CLOEXEC | kNeverRun);
  return fd < 0 && errno == EINVAL ? memfd_create(kName, MFD_CLOEXEC) : fd;
}

absl::Status WriteAll(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t bytes = write(fd, text.data() + written, text.size() - written);
    if (bytes < 0 && errno != EINTR) return NoMemoryFile();
    if (bytes > 0) written += static_cast<size_t>(bytes);
  }
  return absl::OkStatus();
}

}  // namespace

// A descriptor behind which the file changes as a whole.
class ServedTls::MemoryFile {
 public:
  ~MemoryFile() {
    if (fd_ >= 0) close(fd_);
  }

  std::string path() const { return absl::StrCat("/proc/self/fd/", fd_); }

  // `stamp` becomes the time of modification, by which gRPC sees a change between two reads. It counts seconds.
  absl::Status Replace(const std::string& text, int stamp) {
    const int fd = NewMemoryFile();
    if (fd < 0) return NoMemoryFile();
    absl::Cleanup close_file = [fd] { close(fd); };
    if (absl::Status status = WriteAll(fd, text); !status.ok()) return status;
    const timespec time{.tv_sec = stamp, .tv_nsec = 0};
    const timespec times[] = {time, time};
    if (futimens(fd, times) != 0) return NoMemoryFile();
    if (fd_ < 0) {
      std::move(close_file).Cancel();
      fd_ = fd;
    } else if (dup3(fd, fd_, O_CLOEXEC) < 0) {
      return NoMemoryFile();
    }
    return absl::OkStatus();
  }

 private:
  int fd_ = -1;
};

ServedTls::ServedTls(const TlsFiles& files)
    : files_(files), identity_(std::make_unique<MemoryFile>()), client_ca_(std::make_unique<MemoryFile>()) {}

ServedTls::~ServedTls() = default;

absl::StatusOr<std::unique_ptr<ServedTls>> ServedTls::Create(const TlsFiles& files) {
  std::unique_ptr<ServedTls> served(new ServedTls(files));
  if (const auto loaded = served->Reload(); !loaded.ok()) return loaded.status();
  served->shown_ = {.certificate = served->identity_->path(), .key = served->identity_->path(), .client_ca = ""};
  if (!files.client_ca.empty()) served->shown_.client_ca = served->client_ca_->path();
  return served;
}

absl::StatusOr<bool> ServedTls::Reload() {
  auto texts = ReadTlsFiles(files_);
  if (!texts.ok()) return texts.status();
  if (const auto present = this->texts(); present != nullptr && *present == *texts) return false;
  ++changes_;
  absl::Status status = identity_->Replace(texts->key + texts->certificate, changes_);
  if (status.ok() && !files_.client_ca.empty()) status = client_ca_->Replace(texts->client_ca, changes_);
  if (!status.ok()) return status;
  MutexLock lock(mutex_);
  texts_ = std::make_shared<const TlsTexts>(*std::move(texts));
  return true;
}

std::shared_ptr<const TlsTexts> ServedTls::texts() const {
  MutexLock lock(mutex_);
  return texts_;
}

}  // namespace routing_replay::server
