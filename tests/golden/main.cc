// golden_runner [--dir DIR]…: runs our code on recorded inputs of other projects' code, and compares the outputs with
// theirs. Without --dir it uses the files of this repository.
#include "tests/golden/arguments.h"

int main(int argc, char** argv) { return routing_replay::golden::RunWithArguments(argc, argv); }
