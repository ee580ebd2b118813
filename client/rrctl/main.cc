// rrctl: the operator's and debugger's tool.
#include "client/rrctl/application.h"

int main(int argc, char** argv) { return routing_replay::Application().Main({argv + 1, argv + argc}); }
