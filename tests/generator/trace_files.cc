#include "tests/generator/trace_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

using Json = nlohmann::json;

// An .npy file of version 1: 6 bytes of magic, 2 of version, 2 of header length, the header, then the data.
constexpr size_t kNpyPreamble = 10;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the data of a .npy file. Rejects every file that is not u8, in C order and of this shape.
absl::StatusOr<std::string> ReadNpy(const std::string& path, const std::vector<int64_t>& shape) {
  absl::StatusOr<std::string> file = ReadFile(path);
  if (!file.ok()) return file.status();
  const auto rejected = [&](const char* why) { return absl::InvalidArgumentError(absl::StrCat(path, ": ", why)); };
  if (file->size() < kNpyPreamble || file->compare(0, 8, std::string("\x93NUMPY\x01\x00", 8)) != 0) {
    return rejected("not a .npy file of version 1");
  }
  const size_t header_bytes = static_cast<uint8_t>((*file)[8]) | static_cast<uint8_t>((*file)[9]) << 8;
  const std::string header = file->substr(kNpyPreamble, header_bytes);
  const std::string shape_text = absl::StrCat("(", shape[0], ", ", shape[1], ", ", shape[2], ")");
  if (header.find("'|u1'") == std::string::npos || header.find("'fortran_order': False") == std::string::npos ||
      header.find(shape_text) == std::string::npos) {
    return rejected("not the u8 array in C order that index.json announces");
  }
  std::string data = file->substr(std::min(file->size(), kNpyPreamble + header_bytes));
  if (static_cast<int64_t>(data.size()) != shape[0] * shape[1] * shape[2]) return rejected("too long or too short");
  return data;
}

absl::StatusOr<RoutingTrace> ReadTrace(const std::string& directory, const std::string& name, const Json& entry) {
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto lengths = entry.at("seq_lens").get<std::vector<int64_t>>();
  const auto experts = entry.at("experts").get<int32_t>();
  const auto top_k = entry.at("topk").get<int32_t>();
  const bool negative = std::any_of(lengths.begin(), lengths.end(), [](int64_t rows) { return rows < 0; });
  if (shape.size() != 3 || shape[2] != top_k || negative ||
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) != shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat("index.json: ", name, " contradicts itself"));
  }
  absl::StatusOr<std::string> data = ReadNpy(absl::StrCat(directory, "/", name, ".npy"), shape);
  if (!data.ok()) return data.status();
  RoutingTrace trace{name, {}};
  auto next = data->begin();
  for (const int64_t rows : lengths) {
    Routes routes{rows, static_cast<int32_t>(shape[1]), top_k, experts, {}};
    routes.ids.reserve(rows * shape[1] * shape[2]);
    const auto end = next + rows * shape[1] * shape[2];
    for (; next != end; ++next) routes.ids.push_back(static_cast<uint8_t>(*next));
    trace.sequences.push_back(std::move(routes));
  }
  return trace;
}

}  // namespace

absl::StatusOr<std::vector<RoutingTrace>> ReadTraceDirectory(const std::string& directory) {
  absl::StatusOr<std::string> text = ReadFile(absl::StrCat(directory, "/index.json"));
  if (!text.ok()) return text.status();
  const Json index = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) return absl::InvalidArgumentError(absl::StrCat(directory, "/index.json: not a JSON object"));
  std::vector<RoutingTrace> traces;
  for (const auto& [name, entry] : index.items()) {
    absl::StatusOr<RoutingTrace> trace = absl::InvalidArgumentError("");
    try {
      trace = ReadTrace(directory, name, entry);
    } catch (const Json::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat("index.json: ", name, ": ", error.what()));
    }
    if (!trace.ok()) return trace.status();
    traces.push_back(*std::move(trace));
  }
  return traces;
}

}  // namespace routing_replay::testing
