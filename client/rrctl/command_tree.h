// The commands of rrctl and their flags.
#ifndef CLIENT_RRCTL_COMMAND_TREE_H_
#define CLIENT_RRCTL_COMMAND_TREE_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/rrctl/session.h"
#include "client/rrctl/settings.h"

namespace routing_replay::client {

using Command = std::function<absl::Status(Session&)>;

// Adds them to `app`, whose parsing then fills `settings` and `command`. All four live until that is done.
class CommandTree {
 public:
  CommandTree(CLI::App& app, Settings& settings, Command& command);
  CommandTree(const CommandTree&) = delete;
  CommandTree& operator=(const CommandTree&) = delete;

 private:
  void AddProgram();
  void AddSecurity();
  CLI::App* Add(const std::string& name, const std::string& help, Command command);
  // A command that shows the answer to a question.
  CLI::App* AddLook(const std::string& name, const std::string& help, Layout layout, Query query);
  void AddLooks();
  void AddGet();
  void AddPut();
  void AddLayouts();
  void AddTransfers();
  void AddRemove();
  void AddBench();
  void AddToken();
  void AddDiff();
  void AddDoctor();
  void AddReport();

  void AddRun(CLI::App* command, std::string& run);
  CLI::Option* AddSamples(CLI::App* command, const std::string& help);
  void AddGroups(CLI::App* command, std::optional<std::pair<int64_t, int64_t>>& groups);
  void AddTrainerFlag(CLI::App* command, Producer& producer);
  void AddWatch(CLI::App* command);

  CLI::App& app_;
  Settings& settings_;
  Command& command_;
  std::string watch_;  // As it was written.
  bool drop_run_ = false;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_COMMAND_TREE_H_
