#include "client/rrctl/token.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"
#include "server/security/token_file.h"

namespace routing_replay::client {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr size_t kTokenBytes = 32;

absl::StatusOr<std::string> RandomToken() {
  unsigned char bytes[kTokenBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return absl::InternalError("the system cannot provide random numbers");
  return absl::StrCat("rr_", absl::WebSafeBase64Escape({reinterpret_cast<const char*>(bytes), sizeof(bytes)}));
}

std::string HashOf(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)});
}

// The result is one line of a token file that is a YAML list; its value is JSON, which is also YAML.
std::string EntryFor(const TokenOptions& options, const std::string& token) {
  Document entry = {
      {"name", options.name}, {"sha256", HashOf(token)}, {"runs", options.run_prefixes}, {"scopes", options.scopes}};
  if (options.max_runs > 0) entry["max_runs"] = options.max_runs;
  if (!options.expires.empty()) entry["expires"] = options.expires;
  return absl::StrCat("- ", ToJsonLine(entry));
}

// Writes the text. Returns false, with the reason in errno, if only a part could be written, for example because the
// disk became full.
bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    text.remove_prefix(static_cast<size_t>(std::max<ssize_t>(written, 0)));
  }
  return true;
}

absl::Status WriteSecret(const std::string& path, const std::string& token) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Cleanup close_file = [fd] { close(fd); };
  if (WriteAll(fd, token + "\n")) return absl::OkStatus();
  absl::Status failed = absl::ErrnoToStatus(errno, path);
  unlink(path.c_str());
  return failed;
}

// Returns the entries in the file, with a line break at the end; "" if it does not exist yet.
absl::StatusOr<std::string> ReadEntries(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno == ENOENT ? absl::StatusOr<std::string>("") : absl::ErrnoToStatus(errno, path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "[")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a JSON list; add the entry by hand, without --append"));
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

// Locks the directory, so that two commands do not change its files at once. Closing the descriptor releases the lock.
absl::StatusOr<int> LockFolderOf(const std::filesystem::path& path) {
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, folder);
  if (flock(fd, LOCK_EX) == 0) return fd;
  absl::Status failed = absl::ErrnoToStatus(errno, folder);
  close(fd);
  return failed;
}

// Replaces the file by a rename, so that a server that reads it sees the old or the new version, but never part of an
// entry, which might grant more. The file keeps its owner and mode, so that the server can still read it, and symbolic
// links keep pointing to it.
absl::Status AppendEntry(const std::string& named, const std::string& entry) {
  std::error_code ignored;
  const std::string path = std::filesystem::weakly_canonical(named, ignored).string();
  RR_ASSIGN_OR_RETURN(const auto folder, LockFolderOf(path));
  const absl::Cleanup unlock = [fd = folder] { close(fd); };
  RR_ASSIGN_OR_RETURN(const auto before, ReadEntries(path));
  const std::string text = absl::StrCat(before, entry, "\n");
  if (const auto grants = ParseTokenFile(text); !grants.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", grants.status().message()));
  }
  struct stat status;
  const bool there = stat(path.c_str(), &status) == 0;
  std::string part = path + ".XXXXXX";
  const int fd = mkostemp(part.data(), O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, part);
  const absl::Cleanup close_file = [fd] { close(fd); };
  const bool written = WriteAll(fd, text) && (!there || fchown(fd, status.st_uid, status.st_gid) == 0) &&
                       fchmod(fd, there ? status.st_mode & ALLPERMS : 0600) == 0 && fsync(fd) == 0 &&
                       rename(part.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const int error = errno;
  unlink(part.c_str());
  if (error != EPERM) return absl::ErrnoToStatus(error, part);
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot keep the file's owner; run this as that owner"));
}

// Checks the entry with the server's rules. An error gets "--" before its key, for the flag --expires.
absl::Status CheckEntry(const std::string& entry) {
  const auto grants = ParseTokenFile(entry + "\n");
  if (grants.ok()) return absl::OkStatus();
  const std::pair<std::string, std::string> fault =
      absl::StrSplit(absl::StripPrefix(grants.status().message(), "entry 1: "), absl::MaxSplits(": ", 1));
  return Invalid(absl::StrCat("--", fault.first), fault.second);
}

}  // namespace

absl::StatusOr<Document> MakeToken(const TokenOptions& options) {
  for (const std::string& prefix : options.run_prefixes) {
    // "" covers every run. Any other prefix must be possible in a run name, or it would grant nothing.
    if (prefix.empty()) continue;
    RR_RETURN_IF_ERROR(CheckId(prefix, "--run"));
  }
  RR_ASSIGN_OR_RETURN(const auto token, RandomToken());
  const std::string entry = EntryFor(options, token);
  RR_RETURN_IF_ERROR(CheckEntry(entry));
  Document made = {{"entry", entry}};
  if (options.file.empty()) {
    made["token"] = token;
  } else {
    RR_RETURN_IF_ERROR(WriteSecret(options.file, token));
    made["file"] = options.file;
  }
  if (options.append.empty()) return made;
  if (absl::Status status = AppendEntry(options.append, entry); !status.ok()) {
    // Without an entry in the server's file the token is worthless, so its own file is removed.
    if (!options.file.empty()) unlink(options.file.c_str());
    return status;
  }
  return made;
}

void AddToken(Application& application) {
  const auto options = std::make_shared<TokenOptions>();
  CLI::App* token = application.Add("token",
                                    "make a token, and its entry for the server's --token-file\n"
                                    "The server keeps only the hash: give the token to its user, and keep no copy.",
                                    [options](Session& session) { return session.Show(MakeToken(*options)); });
  token->add_option("NAME", options->name, "name of the token's owner, for log lines")->required();
  token
      ->add_option("--run", options->run_prefixes,
                   "prefix of the run names that the token covers: with grpo, also grpo2; \"\" covers every run")
      ->required()
      ->type_name("PREFIX");
  token->add_option("--scope", options->scopes, "put, read or admin; may be given several times")
      ->required()
      ->type_name("SCOPE")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>{"put", "read", "admin"}));
  token
      ->add_option("--max-runs", options->max_runs,
                   "largest number of runs with these prefixes that may exist; the token cannot create more")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  token->add_option("--expires", options->expires, "when the token expires: a day (2027-01-31, UTC) or a time")
      ->type_name("DATE");
  token
      ->add_option("--append", options->append,
                   "add the entry to the server's token file, which is replaced as a whole")
      ->type_name("FILE");
  token->add_option("--out", options->file, "write the token to this new file, which only its owner can read")
      ->type_name("FILE");
}

}  // namespace routing_replay::client
