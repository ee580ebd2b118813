// rrctl as a whole: from the words of a command line to an exit code.
#ifndef CLIENT_RRCTL_APPLICATION_H_
#define CLIENT_RRCTL_APPLICATION_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/rrctl/command_tree.h"
#include "client/rrctl/failure.h"
#include "client/rrctl/settings.h"

namespace routing_replay::client {

// Uses the process's standard streams and signals, so there is one per process, and one call of Main.
class Application {
 public:
  Application();
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  // `words` are those behind the program's name.
  ExitCode Main(std::vector<std::string> words);

 private:
  ExitCode Complete(std::vector<std::string> words) const;

  CLI::App app_;
  Settings settings_;
  Command command_;
  CommandTree tree_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_APPLICATION_H_
