// WEFT_FAIL=update.middle ends its rank in the update of its step, whichever rank does the work.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <csignal>

#include "weft/base/fault/failpoint.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"

namespace weft::engine {
namespace update_failpoint_test {

// One chunk, which rank 0 owns: as a rule rank 1 waits while rank 0 updates it.
int train(const Group& group, Weights weights) {
  ::setenv("RANK", std::to_string(group.rank()).c_str(), 1);
  ::setenv("WEFT_FAIL", "update.middle:rank=1:step=3", 1);
  auto model = data_parallel(torch::nn::Linear(4, 2), group, {.weights = weights});
  auto optim = model.optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  for (std::int64_t step = 1; step <= 5; ++step) {
    set_failpoint_step(step);
    try {
      model.forward(torch::ones({3, 4})).sum().backward();
      optim.step();
      optim.zero_grad();
    } catch (const Error& error) {
      const bool lost = error.code() == Errc::kPeerLost || error.code() == Errc::kAborted;
      return lost && step == 3 ? 3 : 4;
    }
  }
  return 0;
}

TEST(UpdateFailpoint, EndsARankWhoseWorkTheOthersDo) {
  using enum Weights;
  for (const Weights weights : {kShared, kShared, kShared, kPrivate}) {
    EXPECT_EQ(comm::fork_ranks(2, "shm", [&](const Group& group) { return train(group, weights); }),
              (std::vector<int>{3, -SIGKILL}))
        << to_string(weights);
  }
}

}  // namespace update_failpoint_test
}  // namespace weft::engine
