#include "client/rrctl/doctor.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/wire/clock.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "proto/wire/tls/tls_context.h"

namespace routing_replay::client {
namespace {

absl::StatusOr<std::vector<SocketAddress>> UnixAddress(const std::string& path) {
  SocketAddress address{.size = sizeof(sockaddr_un), .text = absl::StrCat("unix:", path)};
  auto* socket = reinterpret_cast<sockaddr_un*>(&address.bytes);
  if (path.size() >= sizeof(socket->sun_path)) return absl::InvalidArgumentError("the path of the socket is too long");
  socket->sun_family = AF_UNIX;
  std::memcpy(socket->sun_path, path.data(), path.size());
  return std::vector<SocketAddress>{std::move(address)};
}

std::string Text(const addrinfo& info, const std::string& port) {
  char host[NI_MAXHOST] = "?";
  getnameinfo(info.ai_addr, info.ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return info.ai_family == AF_INET6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::Status Failure(int error, const std::string& address) {
  const std::string message = absl::StrCat(address, ": ", std::strerror(error));
  return error == ETIMEDOUT ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
}

// Every address of the server, from the system's resolver. NOT_FOUND with its reason; INVALID_ARGUMENT for a path that
// is too long. Takes as long as the resolver does.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const ServerAddress& server) {
  if (!server.unix_path.empty()) return UnixAddress(server.unix_path);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.bytes, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
    address.text = Text(*info, server.port);
  }
  freeaddrinfo(found);
  return addresses;
}

// The result of a TLS handshake. Includes the server's certificate even if it is not trusted.
struct TlsProbe {
  std::string version;   // "TLSv1.3"
  std::string names;     // The names in the server's certificate ("DNS:a, IP Address:127.0.0.1").
  std::string distrust;  // Why the certificate is not accepted; empty: it is accepted.
  std::string ended;     // How the server closed the connection after the handshake; empty: it stayed open.
};

using Context = std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;
using Certificate = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using Bio = std::unique_ptr<BIO, OpenSslFree<BIO_free>>;

constexpr unsigned char kHttp2[] = {2, 'h', '2'};  // gRPC servers may require that the client offers HTTP/2.

std::string AlternativeNames(const X509* certificate) {
  const int at = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1);
  if (at < 0) return "";
  const Bio out(BIO_new(BIO_s_mem()));
  X509V3_EXT_print(out.get(), X509_get_ext(certificate, at), 0, 0);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, size);
}

void Describe(SSL* connection, TlsProbe& probe) {
  const Certificate shown(SSL_get1_peer_certificate(connection));
  if (shown == nullptr) return;
  probe.names = AlternativeNames(shown.get());
  const long verified = SSL_get_verify_result(connection);
  if (verified != X509_V_OK) probe.distrust = X509_verify_cert_error_string(verified);
}

// UNAVAILABLE if the server does not speak TLS or ends the handshake. A server that requires a (different) client
// certificate may say so in the handshake, or close the connection after it. INVALID_ARGUMENT if authorities,
// certificate or key are not PEM.
absl::StatusOr<TlsProbe> ProbeTls(const Socket& socket, const ChannelKeys& keys) {
  ERR_clear_error();
  const Context context(SSL_CTX_new(TLS_client_method()));
  RR_RETURN_IF_ERROR(TrustAuthorities(context.get(), keys.root_certificates));
  RR_RETURN_IF_ERROR(ShowCertificate(context.get(), keys.certificate, keys.key));
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  // Verification is off, so that the handshake continues and its details can be reported.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const Connection connection(SSL_new(context.get()));
  if (!keys.server_name.empty()) ExpectName(connection.get(), keys.server_name);
  SSL_set_fd(connection.get(), socket.descriptor());
  if (SSL_connect(connection.get()) != 1)
    return absl::UnavailableError(TakeTlsReason("no answer, or the connection was closed"));
  TlsProbe probe{.version = SSL_get_version(connection.get())};
  Describe(connection.get(), probe);
  // With TLS 1.3, a server that rejects the client's certificate says so only after the handshake; other servers send
  // their HTTP/2 settings at this point.
  char byte;
  if (const int read = SSL_read(connection.get(), &byte, 1); read <= 0) {
    const bool closed = SSL_get_error(connection.get(), read) == SSL_ERROR_ZERO_RETURN;
    probe.ended = TakeTlsReason(closed ? "closed" : "");
  }
  SSL_shutdown(connection.get());
  return probe;
}

Finding CheckPlaintext(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout) {
  const auto socket = ConnectTo(address, timeout);
  if (socket.ok() && ProbeTls(*socket, {}).ok()) {
    return Failed("tls", "the server uses TLS, but this client uses plaintext",
                  "give the certificate of its authority: --cacert FILE (ROUTING_REPLAY_CACERT)");
  }
  return {.check = "tls",
          .what = server.unix_path.empty() ? "plaintext, on both sides" : "plaintext, over a Unix socket"};
}

std::string FixOfDistrust(const TlsProbe& probe, const ChannelKeys& keys) {
  if (probe.distrust.find("expired") != std::string::npos) {
    return "the operator must renew the server's certificate (it is read again without a restart)";
  }
  if (probe.distrust.find("mismatch") != std::string::npos) {
    return absl::StrCat("use one of the certificate's names, or give one with --server-name: ", probe.names);
  }
  return keys.root_certificates.empty() ? "give the certificate of the authority that signed it: --cacert FILE"
                                        : "--cacert must hold the authority that signed it";
}

std::string FixOfRejection(const ChannelKeys& keys) {
  return keys.certificate.empty() ? "the server asks for a certificate of its clients: --cert and --key"
                                  : "the server rejects this client's certificate: ask the server's operator "
                                    "for one of an authority that the server trusts";
}

Finding Judge(const TlsProbe& probe, const ChannelKeys& keys) {
  Finding finding{.check = "tls", .what = absl::StrCat(probe.version, ", certificate for ", probe.names)};
  if (!probe.distrust.empty()) {
    finding.verdict = Verdict::kFail;
    finding.what = absl::StrCat("the server's certificate is not accepted: ", probe.distrust, " (", finding.what, ")");
    finding.fix = FixOfDistrust(probe, keys);
  } else if (!probe.ended.empty()) {
    finding.verdict = Verdict::kFail;
    finding.what = absl::StrCat("the server closed the connection after the handshake: ", probe.ended);
    finding.fix = FixOfRejection(keys);
  }
  return finding;
}

}  // namespace

absl::StatusOr<Socket> ConnectTo(const SocketAddress& address, std::chrono::milliseconds timeout) {
  Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.descriptor() < 0) return Failure(errno, address.text);
  // SO_SNDTIMEO also limits connect.
  const timeval time{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  setsockopt(socket.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
  if (connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) == 0) return socket;
  return Failure(errno == EINPROGRESS ? ETIMEDOUT : errno, address.text);
}

Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses) {
  const auto found = Resolve(server);
  if (!found.ok()) {
    return Failed("name", absl::StrCat(server.host, " has no address: ", found.status().message()),
                  "correct the name, or look into /etc/resolv.conf and the cluster's DNS from this machine");
  }
  addresses = *found;
  std::vector<std::string> texts;
  for (const SocketAddress& address : addresses) texts.push_back(address.text);
  return {.check = "name", .what = absl::StrJoin(texts, ", ")};
}

Finding CheckConnect(const std::vector<SocketAddress>& addresses, std::chrono::milliseconds timeout,
                     std::vector<SocketAddress>& reached) {
  std::vector<std::string> failures, connected;
  bool silent = false;
  for (const SocketAddress& address : addresses) {
    const Clock::Time begin = Clock::Real().Now();
    const auto socket = ConnectTo(address, timeout);
    const double ms = std::chrono::duration<double, std::milli>(Clock::Real().Now() - begin).count();
    if (socket.ok()) {
      reached.push_back(address);
      connected.push_back(absl::StrFormat("%s in %.2f ms", address.text, ms));
    } else {
      silent |= absl::IsDeadlineExceeded(socket.status());
      failures.push_back(std::string(socket.status().message()));
    }
  }
  const std::string fix =
      silent ? "a firewall or NetworkPolicy drops the packets, or the address belongs to another machine: open the port"
             : "start the server there, or correct the port; without --listen a server listens on loopback only";
  if (reached.empty()) return Failed("connect", absl::StrCat("no connection: ", absl::StrJoin(failures, "; ")), fix);
  Finding finding{.check = "connect", .what = absl::StrJoin(connected, ", ")};
  if (!failures.empty()) {
    absl::StrAppend(&finding.what, "; no connection to ", absl::StrJoin(failures, "; "));
    Warn(finding, fix);
  }
  return finding;
}

Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const ChannelKeys& keys) {
  if (!keys.encrypted || !server.unix_path.empty()) return CheckPlaintext(server, address, timeout);
  const auto socket = ConnectTo(address, timeout);
  if (!socket.ok()) return Failed("tls", std::string(socket.status().message()), "see the previous check");
  ChannelKeys named = keys;
  if (named.server_name.empty()) named.server_name = server.host;
  const auto probe = ProbeTls(*socket, named);
  if (probe.ok()) return Judge(*probe, named);
  if (absl::IsInvalidArgument(probe.status())) {
    return Failed("tls", std::string(probe.status().message()), "use a PEM file");
  }
  const bool client = probe.status().message().find("certificate") != absl::string_view::npos;
  return Failed("tls", absl::StrCat("no TLS: ", probe.status().message()),
                client ? FixOfRejection(named)
                       : "the server speaks plaintext there, or another service listens: check the port, or remove the "
                         "TLS flags");
}

}  // namespace routing_replay::client
