#include "client/rrctl/doctor/connection_checks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/wire/clock.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

constexpr int64_t kSoon = int64_t{7} * 24 * 3600;  // Seconds.

Finding Failed(const ServerAddress& server, const char* check, std::string what, std::string fix) {
  return {.server = server.endpoint,
          .check = check,
          .verdict = Verdict::kFail,
          .what = std::move(what),
          .fix = std::move(fix)};
}

Finding CheckPlaintext(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout) {
  Finding finding{.server = server.endpoint, .check = "tls"};
  const auto socket = ConnectTo(address, timeout);
  if (socket.ok() && SpeaksTls(*socket)) {
    return Failed(server, "tls", "the server wants TLS, and this client is to speak plaintext",
                  "give the certificate of its authority: --cacert FILE (ROUTING_REPLAY_CACERT)");
  }
  finding.what = "plaintext, on both sides";
  if (!server.unix_path.empty()) finding.what = "plaintext, over a socket of this machine";
  return finding;
}

std::string FixOfDistrust(const TlsProbe& probe, const TlsIdentity& identity) {
  if (probe.seconds_left <= 0)
    return "the operator must renew the server's certificate (it is read again without a restart)";
  if (probe.distrust.find("mismatch") != std::string::npos) {
    return absl::StrCat("use a name that the certificate has, or --server-name with one of them; it is for ",
                        probe.names);
  }
  return identity.authorities.empty() ? "give the certificate of the authority that signed it: --cacert FILE"
                                      : absl::StrCat("--cacert must hold the authority ", probe.issuer);
}

std::string FixOfRefusal(const TlsIdentity& identity) {
  return identity.certificate.empty() ? "the server asks for a certificate of its clients: --cert and --key"
                                      : "the server does not take this client's certificate: ask its operator for one "
                                        "of an authority that it trusts";
}

Finding Judge(const ServerAddress& server, const TlsProbe& probe, const TlsIdentity& identity) {
  Finding finding{.server = server.endpoint,
                  .check = "tls",
                  .facts = {{"version", probe.version},
                            {"subject", probe.subject},
                            {"names", probe.names},
                            {"issuer", probe.issuer},
                            {"not_after", probe.not_after},
                            {"seconds_left", probe.seconds_left},
                            {"http2", probe.http2}}};
  finding.what = absl::StrCat(probe.version, ", certificate for ", probe.names.empty() ? probe.subject : probe.names,
                              " until ", probe.not_after);
  if (!probe.distrust.empty()) {
    finding.verdict = Verdict::kFail;
    finding.what = absl::StrCat("the server's certificate is not accepted: ", probe.distrust, " (", finding.what, ")");
    finding.fix = FixOfDistrust(probe, identity);
  } else if (!probe.ended.empty()) {
    finding.verdict = Verdict::kFail;
    finding.what = absl::StrCat("the server ended the connection behind the handshake: ", probe.ended);
    finding.fix = FixOfRefusal(identity);
  } else if (!probe.http2) {
    finding.verdict = Verdict::kFail;
    finding.what = "TLS, but no HTTP/2 is offered: something else listens there, or stands in between";
    finding.fix = "check the port, and that what stands in between passes HTTP/2 (ALPN h2)";
  } else if (probe.seconds_left < kSoon) {
    finding.verdict = Verdict::kWarn;
    finding.fix = "the operator must renew the server's certificate (it is read again without a restart)";
  }
  return finding;
}

}  // namespace

Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses) {
  const auto found = Resolve(server);
  if (!found.ok()) {
    return Failed(server, "name", absl::StrCat(server.host, " has no address: ", found.status().message()),
                  "correct the name, or look into /etc/resolv.conf and the cluster's DNS from this machine");
  }
  addresses = *found;
  std::vector<std::string> texts;
  for (const SocketAddress& address : addresses) texts.push_back(address.text);
  return {
      .server = server.endpoint, .check = "name", .what = absl::StrJoin(texts, ", "), .facts = {{"addresses", texts}}};
}

Finding CheckConnect(const ServerAddress& server, const std::vector<SocketAddress>& addresses,
                     std::chrono::milliseconds timeout, std::vector<SocketAddress>& reached) {
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
      silent
          ? "a firewall or NetworkPolicy drops the packets, or the address is another machine's: open the port"
          : "start the server there, or correct the port; a server listens on loopback alone unless --listen says more";
  if (reached.empty())
    return Failed(server, "connect", absl::StrCat("no connection: ", absl::StrJoin(failures, "; ")), fix);
  Finding finding{.server = server.endpoint,
                  .check = "connect",
                  .what = absl::StrJoin(connected, ", "),
                  .facts = {{"connected", connected}, {"failed", failures}}};
  if (!failures.empty()) {
    finding.verdict = Verdict::kWarn;
    finding.what = absl::StrCat(finding.what, "; not ", absl::StrJoin(failures, "; "));
    finding.fix = fix;
  }
  return finding;
}

Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const std::optional<TlsIdentity>& identity) {
  if (!identity || !server.unix_path.empty()) return CheckPlaintext(server, address, timeout);
  const auto socket = ConnectTo(address, timeout);
  if (!socket.ok()) return Failed(server, "tls", std::string(socket.status().message()), "see the check before");
  TlsIdentity named = *identity;
  if (named.name.empty()) named.name = server.host;
  const auto probe = ProbeTls(*socket, named);
  if (probe.ok()) return Judge(server, *probe, named);
  if (absl::IsInvalidArgument(probe.status())) {
    return Failed(server, "tls", std::string(probe.status().message()), "give a PEM file");
  }
  const bool client = probe.status().message().find("certificate") != absl::string_view::npos;
  return Failed(server, "tls", absl::StrCat("no TLS: ", probe.status().message()),
                client ? FixOfRefusal(named)
                       : "the server speaks plaintext there, or another service listens: check the port, or leave the "
                         "TLS flags out");
}

}  // namespace routing_replay::client
