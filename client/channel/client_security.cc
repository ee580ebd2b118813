#include "client/channel/client_security.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/channel/endpoint.h"
#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void Fill(std::string& setting, const char* name) {
  if (setting.empty()) setting = FromEnvironment(name);
}

// Converts a gRPC target to the form that users write: removes the scheme and escapes.
std::string AddressOf(absl::string_view target) {
  absl::ConsumePrefix(&target, "dns:///");
  return absl::StrReplaceAll(target, {{"%5B", "["}, {"%5D", "]"}});
}

absl::StatusOr<std::string> ReadPem(absl::string_view setting, const std::string& path) {
  if (path.empty()) return std::string();
  const auto text = ChangingFile(path).Look();
  if (!text.ok()) return Invalid(setting, text.status().message());
  return text->value();
}

// Without this check, gRPC would silently trust the system's authorities if the file had no certificate.
bool HoldsCertificates(absl::string_view pem) {
  constexpr absl::string_view kBegin = "-----BEGIN CERTIFICATE-----", kEnd = "-----END CERTIFICATE-----";
  const size_t last = pem.rfind(kBegin);
  return last != pem.npos && pem.find(kEnd, last) != pem.npos;
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& path) {
  auto text = ReadPem("cacert", path);
  if (!text.ok() || path.empty() || HoldsCertificates(*text)) return text;
  return Invalid("cacert", absl::StrCat(path, " must hold complete PEM certificates"));
}

// A certificate and its key are two files, and replacing both takes a moment. If one changed less than this time ago,
// both are read again.
constexpr std::chrono::milliseconds kSettled(100);
constexpr std::chrono::milliseconds kSettlePoll(20);
constexpr int kSettlePolls = 25;

bool ChangedJustNow(const std::string& path) {
  struct stat status;
  timespec now;
  if (stat(path.c_str(), &status) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0) return false;
  const std::chrono::nanoseconds age = std::chrono::seconds(now.tv_sec - status.st_ctim.tv_sec) +
                                       std::chrono::nanoseconds(now.tv_nsec - status.st_ctim.tv_nsec);
  return age >= std::chrono::nanoseconds(0) && age < kSettled;
}

// Reads the certificate and its key. If they are being replaced, waits half a second at most, so that both are old or
// both are new.
absl::Status ReadIdentity(const SecuritySettings& settings, ChannelKeys& keys) {
  for (int i = 0;; ++i) {
    auto certificate = ReadPem("cert", settings.cert);
    if (!certificate.ok()) return certificate.status();
    auto key = ReadPem("key", settings.key);
    if (!key.ok()) return key.status();
    const auto again = ReadPem("cert", settings.cert);
    const bool settled = again == certificate && !ChangedJustNow(settings.cert) && !ChangedJustNow(settings.key);
    if (settled || i == kSettlePolls) {
      keys.certificate = *std::move(certificate);
      keys.key = *std::move(key);
      return absl::OkStatus();
    }
    std::this_thread::sleep_for(kSettlePoll);
  }
}

absl::StatusOr<std::string> HeaderOf(const std::string& path, absl::string_view text) {
  const absl::string_view token = absl::StripAsciiWhitespace(text.substr(0, text.find('\n')));
  const bool printable =
      std::all_of(token.begin(), token.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (token.empty() || !printable) {
    return Invalid("token_file", absl::StrCat("the first line of ", path, " is not a token"));
  }
  return absl::StrCat("Bearer ", token);
}

}  // namespace

SecuritySettings OrEnvironment(SecuritySettings settings) {
  const std::string tls = FromEnvironment("ROUTING_REPLAY_TLS");
  settings.tls = settings.tls || (!tls.empty() && tls != "0" && !absl::EqualsIgnoreCase(tls, "false"));
  Fill(settings.cacert, "ROUTING_REPLAY_CACERT");
  Fill(settings.cert, "ROUTING_REPLAY_CERT");
  Fill(settings.key, "ROUTING_REPLAY_KEY");
  Fill(settings.server_name, "ROUTING_REPLAY_SERVER_NAME");
  Fill(settings.token_file, "ROUTING_REPLAY_TOKEN_FILE");
  return settings;
}

ClientSecurity::ClientSecurity(SecuritySettings settings) : settings_(std::move(settings)), authorization_("") {
  if (!settings_.token_file.empty()) token_file_.emplace(settings_.token_file);
}

absl::StatusOr<std::shared_ptr<ClientSecurity>> ClientSecurity::Create(SecuritySettings settings) {
  settings = OrEnvironment(std::move(settings));
  if (!settings.cert.empty() && settings.key.empty()) return Invalid("key", "must be given with cert");
  if (!settings.key.empty() && settings.cert.empty()) return Invalid("cert", "must be given with key");
  return std::shared_ptr<ClientSecurity>(new ClientSecurity(std::move(settings)));
}

absl::StatusOr<ChannelKeys> ClientSecurity::KeysFor(absl::string_view target) const {
  ChannelKeys keys;
  keys.encrypted =
      !absl::StartsWith(target, kUnixPrefix) && (settings_.tls || !settings_.cacert.empty() || !settings_.cert.empty());
  if (!keys.encrypted) {
    const std::string address = AddressOf(target);
    if (settings_.token_file.empty() || IsLocalAddress(address)) return keys;
    return Invalid("token_file", absl::StrCat("the token would go to ", address,
                                              " in plaintext; set cacert, or tls for the system's authorities"));
  }
  RR_ASSIGN_OR_RETURN(keys.root_certificates, ReadAuthorities(settings_.cacert));
  RR_RETURN_IF_ERROR(ReadIdentity(settings_, keys));
  keys.server_name = settings_.server_name;
  return keys;
}

absl::StatusOr<std::string> ClientSecurity::Authorization() const {
  MutexLock lock(mutex_);
  if (!token_file_) return authorization_;
  const auto text = token_file_->Look();
  if (!text.ok()) {
    authorization_ = Invalid("token_file", text.status().message());
  } else if (*text) {
    authorization_ = HeaderOf(token_file_->path(), **text);
  }
  return authorization_;
}

absl::Status ClientSecurity::Judge(absl::string_view authorization, const absl::Status& end) const {
  if (!absl::IsUnauthenticated(end)) return end;
  const auto present = Authorization();
  if (!present.ok() || *present == authorization) return end;
  return absl::UnavailableError("the token was replaced meanwhile");
}

}  // namespace routing_replay::client
