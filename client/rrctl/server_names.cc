#include "client/rrctl/server_names.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/client.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::seconds kPatience(1);
constexpr int64_t kMaxSamples = 10000;

std::string LastOf(const WordsByName& words, const std::string& name) {
  const auto found = words.find(name);
  return found == words.end() || found->second.empty() ? "" : found->second.back();
}

std::vector<std::string> SampleNames(Client& client, const std::string& run, Producer producer) {
  const auto joined = client.JoinRun(run);
  if (!joined.ok()) return {};
  const auto samples = (*joined)->List({}, producer);
  if (!samples.ok()) return {};
  std::vector<std::string> names;
  for (const SampleState& sample : *samples) names.push_back(sample.sample);
  return names;
}

// "RUN:SAMPLE" of all runs, as far as there are few.
std::vector<std::string> FullNames(Client& client, const std::vector<RunSummary>& runs, Producer producer) {
  std::vector<std::string> names;
  for (const RunSummary& run : runs) {
    if (static_cast<int64_t>(names.size()) + run.samples > kMaxSamples) break;
    for (const std::string& sample : SampleNames(client, run.run, producer)) {
      names.push_back(absl::StrCat(run.run, ":", sample));
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> ServerNames(absl::string_view argument, const WordsByName& words) {
  const bool compared = argument == "A" || argument == "B";
  if (argument != "RUN" && argument != "SAMPLE" && !compared) return {};
  const SecuritySettings security{.tls = words.count("--tls") > 0,
                                  .cacert = LastOf(words, "--cacert"),
                                  .cert = LastOf(words, "--cert"),
                                  .key = LastOf(words, "--key"),
                                  .server_name = LastOf(words, "--server-name"),
                                  .token_file = LastOf(words, "--token-file")};
  const auto client =
      Client::Connect({.endpoint = LastOf(words, "--endpoint"), .security = security, .call_timeout = kPatience});
  if (!client.ok()) return {};
  const auto runs = (*client)->ListRuns();
  if (!runs.ok()) return {};
  const std::string wanted = LastOf(words, compared ? "--run" : "RUN");
  const Producer producer = words.count("--trainer") > 0 ? Producer::kTrainer : Producer::kRollout;
  if (compared && wanted.empty()) return FullNames(**client, *runs, producer);
  std::vector<std::string> names;
  for (const RunSummary& run : *runs) {
    if (argument == "RUN") {
      names.push_back(run.run);
    } else if (run.run == wanted && run.samples <= kMaxSamples) {
      return SampleNames(**client, wanted, producer);
    }
  }
  return names;
}

}  // namespace routing_replay::client
