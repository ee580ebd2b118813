// A directory for one test.
#ifndef TESTS_SUPPORT_SCRATCH_DIRECTORY_H_
#define TESTS_SUPPORT_SCRATCH_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace routing_replay::testing {

// Initially empty; removed with its contents in the destructor.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "routing_replay_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_SCRATCH_DIRECTORY_H_
