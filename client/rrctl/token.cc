#include "client/rrctl/token.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

constexpr size_t kTokenBytes = 32;

absl::StatusOr<std::string> RandomToken() {
  unsigned char bytes[kTokenBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return absl::InternalError("no random numbers are to be had");
  return absl::StrCat("rr_", absl::WebSafeBase64Escape({reinterpret_cast<const char*>(bytes), sizeof(bytes)}));
}

std::string HashOf(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)});
}

// JSON is YAML too, so the line fits a token file of either kind.
std::string EntryFor(const TokenOptions& options, const std::string& token) {
  nlohmann::ordered_json entry = {
      {"name", options.name}, {"sha256", HashOf(token)}, {"runs", options.run_prefixes}, {"scopes", options.scopes}};
  if (!options.expires.empty()) entry["expires"] = options.expires;
  return absl::StrCat("- ", entry.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

absl::Status WriteSecret(const std::string& path, const std::string& token) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_file = [fd] { close(fd); };
  const std::string line = token + "\n";
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  return written ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
}

}  // namespace

absl::StatusOr<Document> MakeToken(const TokenOptions& options) {
  const auto token = RandomToken();
  if (!token.ok()) return token.status();
  Document made = {{"entry", EntryFor(options, *token)}};
  if (options.file.empty()) {
    made["token"] = *token;
    return made;
  }
  if (absl::Status status = WriteSecret(options.file, *token); !status.ok()) return status;
  made["file"] = options.file;
  return made;
}

}  // namespace routing_replay
