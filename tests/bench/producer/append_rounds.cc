// The C++ client as a rollout worker, one round at a time: the counterpart of producer.py.
//
//   append_rounds ENDPOINT RUN FILE TOKENS LAYERS TOP_K SAMPLES
//
// FILE holds int32 ids [TOKENS - 1][LAYERS][TOP_K]. For each line of standard input, which is a group number, it
// appends the ids as SAMPLES samples of that group, waits until all are acknowledged, prints the wall seconds and this
// process's CPU seconds, and then releases the group.
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/allocator.h"

namespace routing_replay {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

absl::Status AppendAll(Appender& appender, int64_t group, int samples, int64_t tokens, const TensorDescription& tensor,
                       const std::string& ids) {
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(ids.data()), ids.size());
  for (int i = 0; i < samples; ++i) {
    absl::Status status = appender.Append(
        {.sample = absl::StrCat("cc/", group, "/", i), .group = group, .seal_num_tokens = tokens}, tensor, bytes);
    if (!status.ok()) return status;
  }
  return appender.Flush(kTimeout);
}

absl::Status Play(const std::vector<std::string>& arguments) {
  std::ifstream file(arguments[2], std::ios::binary);
  const std::string ids{std::istreambuf_iterator<char>(file), {}};
  const int64_t tokens = std::stoll(arguments[3]);
  const TensorDescription tensor{.dtype = DType::kI32,
                                 .shape = {tokens - 1, std::stoll(arguments[4]), std::stoll(arguments[5])}};
  auto client = Client::Connect({.endpoint = arguments[0]});
  if (!client.ok()) return client.status();
  auto run = (*client)->JoinRun(arguments[1]);
  if (!run.ok()) return run.status();
  const auto appender = (*run)->NewAppender();
  for (int64_t group; std::cin >> group;) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu = std::clock();
    absl::Status status = AppendAll(*appender, group, std::stoi(arguments[6]), tokens, tensor, ids);
    if (!status.ok()) return status;
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::cout << took << " " << static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC << std::endl;
    if (const auto released = (*run)->ReleaseGroups(group, group + 1); !released.ok()) return released.status();
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace routing_replay

int main(int argc, char** argv) {
  constexpr int kArguments = 7;
  if (argc != kArguments + 1) return 2;
  routing_replay::TuneAllocator();
  const absl::Status status = routing_replay::Play({argv + 1, argv + argc});
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
