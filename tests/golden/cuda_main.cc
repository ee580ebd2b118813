// golden_cuda_runner [--dir DIR]…: golden_runner with the router on the GPU.
#include "tests/golden/arguments.h"
#include "tests/golden/kinds/router_path.h"
#include "tests/support/cuda/need_device.h"
#include "tests/support/cuda/router_on_device.h"

namespace {

template <typename D>
void UseDevice() {
  routing_replay::golden::RouterPath<D>::forward = routing_replay::testing::ForwardOnDevice<D>;
  routing_replay::golden::RouterPath<D>::backward = routing_replay::testing::BackwardOnDevice<D>;
}

}  // namespace

int main(int argc, char** argv) {
  routing_replay::testing::NeedDevice();
  UseDevice<float>();
  UseDevice<double>();
  UseDevice<routing_replay::trainer::Bf16>();
  return routing_replay::golden::RunWithArguments(argc, argv);
}
