// golden_runner [--dir DIR]…: inputs and outputs of other projects' real code against ours. Without --dir: those of
// this repository.
#include "tests/golden/arguments.h"

int main(int argc, char** argv) { return routing_replay::golden::RunWithArguments(argc, argv); }
