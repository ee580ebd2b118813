#include "tests/bench/common/processes.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/allocator.h"

namespace routing_replay::bench {

absl::StatusOr<quickstart::ServerProcess> StartServer(const std::string& program,
                                                      const std::vector<std::string>& flags) {
  std::string directory = (std::filesystem::temp_directory_path() / "routing-replay-bench.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot make ", directory));
  std::vector<std::string> all = {"--log-level", "warning"};
  all.insert(all.end(), flags.begin(), flags.end());
  auto server = quickstart::StartServer(program, directory, all);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return server;
}

absl::StatusOr<Team> StartTeam(const std::string& name, int count, bool tuned, const MakeRole& make) {
  return Team::Start(name, count, [&](int i) {
    if (tuned) TuneAllocator();
    return make(i);
  });
}

}  // namespace routing_replay::bench
