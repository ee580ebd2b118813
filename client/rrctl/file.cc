#include "client/rrctl/file.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"

namespace routing_replay {
namespace {

// More than any server takes in one append.
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;
constexpr size_t kReadBytes = size_t{1} << 20;

absl::StatusOr<std::vector<uint8_t>> ReadAll(std::istream& input, const std::string& name) {
  std::vector<uint8_t> bytes;
  while (input.good()) {
    const size_t size = bytes.size();
    bytes.resize(size + kReadBytes);
    input.read(reinterpret_cast<char*>(bytes.data() + size), kReadBytes);
    bytes.resize(size + input.gcount());
    if (static_cast<int64_t>(bytes.size()) > kMaxFileBytes) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has more than ", HumanBytes(kMaxFileBytes),
                                                     ", which no append may have; put it in parts"));
    }
  }
  if (input.bad()) return absl::DataLossError(absl::StrCat("cannot read ", name));
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadFile(const std::string& path, std::istream& input) {
  if (path == "-") return ReadAll(input, "standard input");
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return ReadAll(file, path);
}

absl::Status WriteFile(const std::string& path, absl::string_view bytes) {
  const std::string part = absl::StrCat(path, ".part");
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot write ", part));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (file && !error) return absl::OkStatus();
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  return absl::DataLossError(absl::StrCat("cannot write ", path, error ? ": " + error.message() : ""));
}

}  // namespace routing_replay
