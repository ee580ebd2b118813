#include "tests/golden/golden_file.h"

#include <zstd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::golden {
namespace {

constexpr const char* kJson = ".json";
constexpr const char* kZstd = ".zst";

absl::StatusOr<std::string> Decompress(const std::string& compressed) {
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
  ZSTD_inBuffer in{compressed.data(), compressed.size(), 0};
  std::string text;
  std::string chunk(ZSTD_DStreamOutSize(), '\0');
  size_t left = 1;  // 0 at the end of a frame.
  while (in.pos < in.size) {
    ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
    left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left)) return absl::InvalidArgumentError(absl::StrCat("zstd: ", ZSTD_getErrorName(left)));
    text.append(chunk, 0, out.pos);
  }
  // Now the decompressor has consumed all input, but it may still have output that did not fit into the chunk.
  while (left != 0) {
    ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
    left = ZSTD_decompressStream(context.get(), &out, &in);
    if (ZSTD_isError(left) || out.pos == 0) return absl::InvalidArgumentError("zstd: truncated");
    text.append(chunk, 0, out.pos);
  }
  return text;
}

// Makes JSON of Python's json module valid: replaces the words NaN, Infinity and -Infinity by the strings "nan", "inf"
// and "-inf".
std::string QuoteNonFinite(absl::string_view text) {
  constexpr std::pair<absl::string_view, const char*> kWords[] = {
      {"-Infinity", "\"-inf\""}, {"Infinity", "\"inf\""}, {"NaN", "\"nan\""}};
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      quoted += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      const auto* word = std::find_if(std::begin(kWords), std::end(kWords), [&](const auto& candidate) {
        return absl::StartsWith(text.substr(i), candidate.first);
      });
      if (word != std::end(kWords)) {
        quoted += word->second;
        i += word->first.size() - 1;
        continue;
      }
    }
    if (i < text.size()) quoted += text[i];
  }
  return quoted;
}

}  // namespace

absl::StatusOr<std::vector<std::filesystem::path>> FindGoldenFiles(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::filesystem::path name = it->path();
    if (name.extension() == kZstd) name.replace_extension();
    if (name.extension() == kJson) files.push_back(it->path());
  }
  if (error) return absl::NotFoundError(absl::StrCat(directory.string(), ": ", error.message()));
  std::sort(files.begin(), files.end());
  return files;
}

std::string Stem(const std::filesystem::path& path) {
  std::filesystem::path name = path.filename();
  if (name.extension() == kZstd) name.replace_extension();
  return name.stem().string();
}

absl::StatusOr<nlohmann::json> LoadGoldenFile(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  absl::StatusOr<std::string> text = std::string(std::istreambuf_iterator<char>(stream), {});
  if (!stream) return absl::InvalidArgumentError("cannot be read");
  if (path.extension() == kZstd) text = Decompress(*text);
  if (!text.ok()) return text.status();
  nlohmann::json json = nlohmann::json::parse(QuoteNonFinite(*text), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array()) {
    return absl::InvalidArgumentError("is not a JSON object with a list of cases");
  }
  return json;
}

}  // namespace routing_replay::golden
