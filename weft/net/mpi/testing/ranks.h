// Shared by the tests over MPI: all ranks of an mpirun run them together.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "weft/kernels/reduce.h"
#include "weft/net/mpi/mpi.h"
#include "weft/net/testing/trials.h"

namespace weft::net::mpi {

using namespace std::chrono_literals;
using net::internal::error_of;
using net::internal::pattern;
using net::internal::soon;
using schedule::Collective;
using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

// One rank's fixture: a new group for each test. meet() waits for all ranks without using that
// group.
class MpiContract : public testing::Test {
 protected:
  static constexpr int kWorld = 4;
  void SetUp() override {
    group_ = connect_mpi();
    ASSERT_EQ(group_->world(), kWorld);
    rank_ = group_->rank();
  }
  void meet() { connect_mpi({.epoch = 99}); }
  void swap(Channel channel, int peer, const Bytes& out, Bytes& in) {
    const Send send{peer, out};
    const Recv recv{peer, in};
    group_->exchange(channel, {&send, 1}, {&recv, 1}, soon());
  }

  std::unique_ptr<MpiEndpoint> group_;
  int rank_ = -1;
};
}  // namespace weft::net::mpi
