// What the listeners show of the operator's TLS files: always a whole set that was found good, whatever state the files
// are in. Knows no gRPC.
#ifndef SERVER_SECURITY_SERVED_TLS_H_
#define SERVER_SECURITY_SERVED_TLS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "server/security/tls_files.h"

namespace routing_replay::server {

class ServedTls {
 public:
  // Errors as ReadTlsFiles; UNAVAILABLE where the system has no memory file for them.
  static absl::StatusOr<std::unique_ptr<ServedTls>> Create(const TlsFiles& files);
  ~ServedTls();

  // Takes the files as they are now, if they are good: whether they are others than before. On an error, as of Create,
  // what is served stays as it was. One thread at a time.
  absl::StatusOr<bool> Reload();

  // Where what is served is read: files of this process alone, in memory, each of which changes at once. Certificate
  // and key are one file, so that nobody reads one without the other.
  const TlsFiles& shown() const { return shown_; }
  // Thread-safe.
  std::shared_ptr<const TlsTexts> texts() const;

 private:
  class MemoryFile;
  explicit ServedTls(const TlsFiles& files);

  const TlsFiles files_;
  const std::unique_ptr<MemoryFile> identity_;
  const std::unique_ptr<MemoryFile> client_ca_;
  TlsFiles shown_;
  int changes_ = 0;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsTexts> texts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_SECURITY_SERVED_TLS_H_
