// main() of the test programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/process/start.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  weft::end_process(RUN_ALL_TESTS());
}
