// main of tests that need a GPU.
#include <gtest/gtest.h>

#include "tests/support/cuda/need_device.h"

int main(int argc, char** argv) {
  routing_replay::testing::NeedDevice();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
