// rrctl: the operator's and debugger's tool.
#include <grpc/support/log.h>

#include <cstdlib>

#include "client/rrctl/application.h"

int main(int argc, char** argv) {
  // A failure is told in one line. What gRPC says of it is shown to those who set its own variable.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  return routing_replay::client::Application().Main({argv + 1, argv + argc});
}
