#include "proto/wire/tls/tls_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace routing_replay {
inline namespace wire {
namespace {

// One Read returns at most about this many bytes, so that its thread also serves other connections.
constexpr size_t kBytesAtATime = 1 << 20;

using NamesPtr = std::unique_ptr<GENERAL_NAMES, OpenSslFree<GENERAL_NAMES_free>>;

// Payload of the longest TLS record.
constexpr size_t kRecordBytes = 16 << 10;

// The bytes for the next TLS record: in place if they are contiguous, otherwise copied into `room`.
absl::Span<const uint8_t> NextRecord(absl::Span<const iovec> bytes, size_t skip, uint8_t* room) {
  const auto rest = [&](const iovec& piece) {
    return absl::MakeConstSpan(static_cast<const uint8_t*>(piece.iov_base), piece.iov_len).subspan(skip);
  };
  if (const auto first = rest(bytes.front()); first.size() >= kRecordBytes || bytes.size() == 1) {
    return first.first(std::min(first.size(), kRecordBytes));
  }
  size_t filled = 0;
  for (size_t i = 0; i < bytes.size() && filled < kRecordBytes; ++i, skip = 0) {
    const auto from = rest(bytes[i]);
    const size_t size = std::min(from.size(), kRecordBytes - filled);
    if (size > 0) std::memcpy(room + filled, from.data(), size);
    filled += size;
  }
  return absl::MakeConstSpan(room, filled);
}

// Blocks SIGPIPE for the calling thread while it lives. OpenSSL writes to sockets without MSG_NOSIGNAL, and the
// signal's disposition belongs to the host process.
class WithoutSigpipe {
 public:
  // `over`: the status of the OpenSSL calls. If it is not OK at destruction, a SIGPIPE may be pending, and is
  // discarded.
  explicit WithoutSigpipe(const absl::Status& over) : over_(over) {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    constexpr timespec kNow{};
    if (!over_.ok() && sigismember(&before_, SIGPIPE) == 0) sigtimedwait(&pipe_, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  const absl::Status& over_;
  sigset_t pipe_, before_;
};

std::string NameText(const GENERAL_NAME& name) {
  if (name.type == GEN_IPADD) {
    char text[INET6_ADDRSTRLEN] = "";
    const int family = ASN1_STRING_length(name.d.iPAddress) == sizeof(in_addr) ? AF_INET : AF_INET6;
    inet_ntop(family, ASN1_STRING_get0_data(name.d.iPAddress), text, sizeof(text));
    return text;
  }
  if (name.type != GEN_DNS && name.type != GEN_URI && name.type != GEN_EMAIL) return "";
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name.d.ia5)),
                     static_cast<size_t>(ASN1_STRING_length(name.d.ia5)));
}

// The certificate's subject alternative names, or its common name if it has none.
std::string NamesOf(const X509* certificate) {
  std::string all;
  const NamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::string name = NameText(*sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty()) absl::StrAppend(&all, all.empty() ? "" : " ", name);
  }
  if (!all.empty()) return all;
  char common[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, common, sizeof(common));
  return common;
}

}  // namespace

TlsStream::TlsStream(const TlsContext& context, int fd) : fd_(fd), ssl_(SSL_new(context.get())) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd) != 1) over_ = absl::UnavailableError("TLS: out of memory");
}

TlsStream::~TlsStream() { close(fd_); }

std::unique_ptr<TlsStream> TlsStream::Accept(const TlsContext& context, int fd) {
  std::unique_ptr<TlsStream> stream(new TlsStream(context, fd));
  if (stream->over_.ok()) SSL_set_accept_state(stream->ssl_.get());
  return stream;
}

std::unique_ptr<TlsStream> TlsStream::Connect(const TlsContext& context, int fd, const std::string& server_name) {
  std::unique_ptr<TlsStream> stream(new TlsStream(context, fd));
  // Without a name, OpenSSL would accept any certificate.
  if (server_name.empty())
    stream->over_ = absl::UnavailableError("TLS: no server name to check the certificate against");
  if (!stream->over_.ok()) return stream;
  SSL_set_connect_state(stream->ssl_.get());
  if (!ExpectName(stream->ssl_.get(), server_name)) stream->over_ = absl::UnavailableError("TLS: out of memory");
  return stream;
}

absl::StatusOr<size_t> TlsStream::Stop(size_t moved, int result, uint32_t& events) {
  const int error = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      events = POLLIN;
      return moved;
    case SSL_ERROR_WANT_WRITE:
      events = POLLOUT;
      return moved;
    case SSL_ERROR_ZERO_RETURN:
      over_ = absl::UnavailableError("the peer closed the connection");
      break;
    case SSL_ERROR_SYSCALL:
      over_ = absl::UnavailableError(error == 0 ? "the peer closed the connection" : std::strerror(error));
      break;
    default:
      const long verified = SSL_get_verify_result(ssl_.get());
      over_ = absl::UnavailableError(verified == X509_V_OK
                                         ? absl::StrCat("TLS: ", TakeTlsReason("protocol error"))
                                         : absl::StrCat("TLS: certificate: ", X509_verify_cert_error_string(verified)));
  }
  ERR_clear_error();
  if (moved > 0) return moved;  // The next call returns the error.
  return over_;
}

absl::StatusOr<size_t> TlsStream::Read(absl::Span<const iovec> space) {
  if (!over_.ok()) return over_;
  const WithoutSigpipe quiet(over_);
  size_t came = 0;
  drained_ = false;
  for (const iovec& piece : space) {
    for (size_t filled = 0; filled < piece.iov_len;) {
      if (came >= kBytesAtATime) return came;
      const size_t most = std::min<size_t>(piece.iov_len - filled, INT_MAX);
      ERR_clear_error();
      errno = 0;
      const int result = SSL_read(ssl_.get(), static_cast<char*>(piece.iov_base) + filled, static_cast<int>(most));
      if (result <= 0) {
        drained_ = true;
        // A write that waited for the peer's part of the handshake need not wait longer.
        if (SSL_is_init_finished(ssl_.get()) == 1) write_events_ = POLLOUT;
        return Stop(came, result, read_events_);
      }
      read_events_ = POLLIN;
      filled += static_cast<size_t>(result);
      came += static_cast<size_t>(result);
    }
  }
  return came;
}

absl::StatusOr<size_t> TlsStream::Write(absl::Span<const iovec> bytes) {
  if (!over_.ok()) return over_;
  const WithoutSigpipe quiet(over_);
  std::array<uint8_t, kRecordBytes> room;
  size_t sent = 0, skip = 0;  // Bytes sent, and bytes to skip in the first remaining piece.
  while (true) {
    while (!bytes.empty() && skip >= bytes.front().iov_len) {
      skip -= bytes.front().iov_len;
      bytes.remove_prefix(1);
    }
    if (bytes.empty()) return sent;
    const absl::Span<const uint8_t> record = NextRecord(bytes, skip, room.data());
    ERR_clear_error();
    errno = 0;
    const int result = SSL_write(ssl_.get(), record.data(), static_cast<int>(record.size()));
    if (result <= 0) return Stop(sent, result, write_events_);
    write_events_ = POLLOUT;
    sent += static_cast<size_t>(result);
    skip += static_cast<size_t>(result);
  }
}

std::string TlsStream::peer_names() const {
  const X509* const own = SSL_get0_peer_certificate(ssl_.get());
  return own == nullptr ? "" : NamesOf(own);
}

}  // namespace wire
}  // namespace routing_replay
