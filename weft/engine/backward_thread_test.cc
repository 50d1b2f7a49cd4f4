// Backward on another thread than the one that trains, as of parameters on a device.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/data_parallel.h"
#include "weft/observe/trace.h"

namespace weft::engine {
namespace backward_thread_test {

TEST(BackwardThread, RecordsItsCommunicationInTheTraceOfTheForwardPass) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& group) {
    observe::Trace trace;
    trace.record(true);
    auto model = data_parallel(torch::nn::Linear(4, 2), group);
    at::Tensor loss;
    {
      const observe::Trace::Use here(&trace, "main");
      loss = model.forward(torch::ones({3, 4})).sum();
    }
    std::thread([&] { loss.backward(); }).join();
    const auto spans = trace.take().spans;
    return std::any_of(spans.begin(), spans.end(),
                       [](const observe::Span& span) { return span.category == "comm"; })
               ? 0
               : 1;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace backward_thread_test
}  // namespace weft::engine
