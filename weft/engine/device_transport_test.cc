// The transport of parameters on devices, with tensors of the CPU in their place: sums, averages
// and marks do not depend on where tensors are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "weft/comm/replicate.h"
#include "weft/comm/testing/fork_ranks.h"
#include "weft/engine/internal/transport.h"

namespace weft::engine::internal {
namespace device_transport_test {

struct Model {
  std::vector<at::Tensor> params;
  Updates updates{OptimizerSpec{.rule = kernels::Adam{.lr = 0.1}},
                  {"a", "b", "never"},
                  {at::kFloat, at::kDouble, at::kFloat},
                  {{5}, {2, 3}, {4}}};

  Model() {
    params = {at::ones({5}), at::ones({2, 3}, at::kDouble), at::ones({4})};
    for (std::size_t i = 0; i < params.size(); ++i) {
      params[i].set_requires_grad(true);
      updates.put_on_device(static_cast<int>(i), params[i].detach(),
                            {at::zeros_like(params[i]), at::zeros_like(params[i])});
    }
  }
};

at::Tensor gradient_of(const at::Tensor& param, int rank, int step) {
  return at::full(param.sizes(), rank + 1.0 + step, param.scalar_type());
}

// Rank 1 has no gradient of "b", and no rank one of "never". A second model takes the averages in
// grad(), without an optimizer.
int train(const Group& group) {
  Model model, plain, alone;
  SampleCount samples;
  DataParallelBase::Times times;
  const auto transport_of = [&](Model& of, Updates* updates) {
    return make_message_transport({.group = group,
                                   .params = of.params,
                                   .buffers = {},
                                   .options = {},
                                   .updates = updates,
                                   .devices = true,
                                   .samples = &samples,
                                   .times = &times});
  };
  const auto with = transport_of(model, &model.updates), without = transport_of(plain, nullptr);
  for (int step = 0; step < 4; ++step) {
    std::vector<std::pair<int, at::Tensor>> averages;
    for (int i = 0; i < 2; ++i) {
      at::Tensor sum = at::zeros_like(model.params[index(i)]);
      for (int rank = 0; rank < group.size(); ++rank) {
        if (i == 1 && rank == 1) continue;
        const at::Tensor gradient = gradient_of(sum, rank, step);
        sum += gradient;
        if (rank == group.rank())
          model.params[index(i)].mutable_grad() = plain.params[index(i)].mutable_grad() = gradient;
      }
      averages.emplace_back(i, sum / group.size());
    }
    for (const auto& transport : {with.get(), without.get()}) {
      samples.set(2);
      for (const int i : {1, 0}) {
        if (i == 0 || group.rank() != 1) transport->ready(i);
      }
      transport->finish(1);
      if (transport->used() != std::vector<bool>{true, true, false}) return 1;
    }
    alone.updates.update_all(averages);
    for (const auto& [param, average] : averages) {
      if (!at::allclose(plain.params[index(param)].grad(), average)) return 2;
      if (!at::allclose(model.params[index(param)], alone.params[index(param)])) return 3;
    }
    if (plain.params[2].grad().defined()) return 4;
    for (Updates* const updates : {&model.updates, &alone.updates})
      updates->stepped({true, true, false});
    for (Model* const each : {&model, &plain}) {
      for (at::Tensor& param : each->params) param.mutable_grad().reset();
    }
  }
  return at::equal(model.params[2], at::ones({4})) ? 0 : 5;
}

TEST(DeviceTransport, AveragesAndUpdates) {
  for (const int ranks : {1, 2, 3})
    EXPECT_EQ(comm::fork_ranks(ranks, "auto", train), std::vector<int>(index(ranks), 0)) << ranks;
}

// By messages, as in a group without shared memory. The buckets are planned again after the first
// step, so nothing may be pending then.
TEST(MessageTransport, CountsTheFirstUpdateOfARankAloneWithOverlapForward) {
  replicate(1, [](const Group& group) {
    Model model;
    SampleCount samples;
    DataParallelBase::Times times;
    const auto transport = make_message_transport({.group = group,
                                                   .params = model.params,
                                                   .buffers = {},
                                                   .options = {.overlap_forward = true},
                                                   .updates = &model.updates,
                                                   .samples = &samples,
                                                   .times = &times});
    samples.set(1);
    model.params[0].mutable_grad() = at::ones({5});
    transport->ready(0);
    transport->finish(1);
    transport->settle();
    EXPECT_EQ(transport->used(), (std::vector<bool>{true, false, false}));
    EXPECT_FALSE(at::equal(model.params[0], at::ones({5})));
  });
}

}  // namespace device_transport_test
}  // namespace weft::engine::internal
