// Finds and loads golden files.
#ifndef TESTS_GOLDEN_GOLDEN_FILE_H_
#define TESTS_GOLDEN_GOLDEN_FILE_H_

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace routing_replay::golden {

// Every .json and .json.zst below `directory`, sorted by path. NOT_FOUND if there is no such directory.
absl::StatusOr<std::vector<std::filesystem::path>> FindGoldenFiles(const std::filesystem::path& directory);

// The file's name without its extensions.
std::string Stem(const std::filesystem::path& path);

// INVALID_ARGUMENT if the file is not JSON (compressed or not) with a list of cases.
absl::StatusOr<nlohmann::json> LoadGoldenFile(const std::filesystem::path& path);

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_GOLDEN_FILE_H_
