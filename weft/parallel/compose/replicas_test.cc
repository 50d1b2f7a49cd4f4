// Plain replicas under parallelize(): the features of data_parallel().
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <future>

#include "weft/base/testing/refusal.h"
#include "weft/parallel/compose/testing/own_net.h"
#include "weft/parallel/compose/testing/parity.h"

namespace weft::parallel {
namespace replicas_test {

using namespace internal;
using testing::HasSubstr;

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what);
}

Plan trained_with(engine::DataParallelOptions options, Plan plan = {}) {
  plan.data_parallel = std::move(options);
  return trained_by(on({}, std::move(plan)));
}

// All weights and state after some steps, on rank 0.
Named weights_after(const Group& world, const Plan& plan) {
  const Tiny how{.type = at::kFloat};
  ParallelModel model = parallelize(tiny_model(how), plan, Mesh(world, {{"dp", world.size()}}));
  for (int step = 0; step < 9; ++step) {
    // Applies to the next step, not to the one whose transfers are pending.
    model.set_lr(0.01 / (1 + step));
    train(model, step);
    model.step();
  }
  model.wait_for_weights();
  return named(model.state());
}

// Messages between processes, with tuned buckets and delayed updates, also through codecs.
TEST(Replicas, OverlapTransfersWithTheNextForwardWithTheSameBits) {
  const auto codes = comm::fork_ranks(2, "tcp", [](const Group& world) {
    torch::set_num_threads(1);
    for (const char* codec : {"none", "bf16", "topk:0.1"}) {
      engine::DataParallelOptions options{.bucket_bytes = 3000, .first_bucket_bytes = 3000};
      const Named waited = weights_after(world, trained_with(options, {.codec = codec}));
      options.overlap_forward = true;
      const Named overlapped = weights_after(world, trained_with(options, {.codec = codec}));
      require(waited.size() == overlapped.size() && waited.empty() == (world.rank() > 0),
              "no state");
      for (const auto& [name, tensor] : waited)
        require(at::equal(tensor, overlapped.at(name)), codec + (": " + name));
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(Replicas, HaveTheSameWeightsForEveryPlacement) {
  replicate(3, [](const Group& world) {
    const Named shared = weights_after(world, trained_with({}, {.weights = Weights::kShared}));
    for (const Weights weights : {Weights::kPrivate, Weights::kAuto}) {
      expect_same_bits(shared, weights_after(world, trained_with({}, {.weights = weights})),
                       to_string(weights));
    }
    expect_same_bits(shared, weights_after(world, trained_with({.update_in_backward = true})),
                     "updated in backward");
  });
  replicate(2, [](const Group& world) {
    const ParallelModel model = parallelize(
        tiny_model({}), trained_with({}, {.weights = Weights::kShared}), Mesh(world, {{"dp", 2}}));
    EXPECT_THAT(model.describe(), HasSubstr("weights shared by 2 ranks of this host"));
  });
}

TEST(Replicas, ReturnTheirOwnLossOnRequest) {
  const auto expected = by_torch<torch::optim::AdamW>({}, adam());
  replicate(3, [&](const Group& world) {
    ParallelModel model = parallelize(tiny_model({}), trained_with({}), Mesh(world, {{"dp", 3}}));
    const auto share = [&](int shift) { return share_of(tokens_of(0, shift), model.replica(), 3); };
    at::Tensor sum =
        at::full({1}, model.forward_backward({share(0)}, {share(1)}).at(0), at::kDouble);
    model.step();
    world.all_reduce(sum);
    EXPECT_NEAR(sum.item<double>() / kSamples, expected.losses[0], 1e-12);
  });
}

// The shares are uneven and differ from batch to batch.
TEST(Replicas, WeightSamplesOfAccumulatedBatchesWithinEachBatch) {
  const auto train_once = [](const Group& world, std::vector<Axis> axes) {
    const Mesh mesh(world, std::move(axes));
    ParallelModel model = parallelize(tiny_model({}), trained_with({}, {.accumulate = 2}), mesh);
    model.zero_grad();
    for (int batch = 0; batch < 2; ++batch) {
      const auto rows = [&](int shift) {
        return share_of(tokens_of(batch, shift).slice(0, 0, batch == 0 ? 11 : 4), model.replica(),
                        model.replicas());
      };
      model.train_step({rows(0)}, {rows(1)});
    }
    model.step();
    return named(model.state());
  };
  Named alone, together;
  replicate(1, [&](const Group& world) { alone = train_once(world, {}); });
  replicate(3, [&](const Group& world) {
    const Named state = train_once(world, {{"dp", 3}});
    if (world.rank() == 0) together = state;
  });
  expect_close(together, alone, 1e-10, "two uneven batches");
}

// Two Linears. The weight of one is not contiguous, so that replicas cannot update it in place.
torch::nn::Sequential linears(std::size_t strided) {
  torch::nn::Sequential all(torch::nn::Linear(3, 8), torch::nn::Linear(8, 2));
  all->to(at::kDouble);
  fill(*all);
  at::Tensor weight = all->ptr(strided)->parameters()[0];
  weight.set_data(weight.detach().t().contiguous().t());
  EXPECT_FALSE(all->ptr(strided)->parameters()[0].is_contiguous());
  return all;
}

TEST(Replicas, AccumulateLikeOneProcessIfAWeightOfOneStageIsNotContiguous) {
  Plan plan = trained_with({}, {.accumulate = 2});
  plan.optimizer = optimizer_spec(torch::optim::SGDOptions(0.1), {});
  plan.micro_batches = 2;
  const auto batch_of = [](int batch) { return own_net::inputs().to(at::kDouble) * (batch + 1); };
  for (const std::size_t strided : {0U, 1U}) {
    const std::string what = "the weight of block " + std::to_string(strided);
    torch::nn::Sequential own = linears(strided);
    std::vector<double> losses;
    for (int batch = 0; batch < 2; ++batch) {
      const at::Tensor x = batch_of(batch),
                       loss = torch::mse_loss(own->forward(x), x.narrow(1, 0, 2));
      (loss / 2).backward();
      losses.push_back(loss.item<double>());
    }
    Named wanted;
    for (const auto& item : own->named_parameters()) wanted[item.key()] = item.value().grad();
    replicate(4, [&](const Group& world) {
      ParallelModel model = parallelize(own_net::model_of(linears(strided)), plan,
                                        Mesh(world, {{"pp", 2}, {"dp", 2}}));
      model.zero_grad();
      for (int batch = 0; batch < 2; ++batch) {
        const at::Tensor x = batch_of(batch).chunk(2)[static_cast<std::size_t>(model.replica())];
        EXPECT_NEAR(model.train_step({x}, {x.narrow(1, 0, 2)}),
                    losses[static_cast<std::size_t>(batch)], 1e-12)
            << what;
      }
      EXPECT_TRUE(model.step());
      const Named gradients = named(model.gradients());
      if (world.rank() == 0) expect_close(gradients, wanted, 1e-12, what);
    });
  }
}

TEST(Replicas, DropABatchWithoutAStep) {
  for (const Weights weights : {Weights::kShared, Weights::kPrivate}) {
    Named without, with;
    const auto run = [&](bool dropped, Named& left) {
      replicate(3, [&](const Group& world) {
        ParallelModel model = parallelize(tiny_model({}), trained_with({}, {.weights = weights}),
                                          Mesh(world, {{"dp", 3}}));
        if (dropped) train(model, 3);
        train(model, 0);  // begins with zero_grad()
        model.step();
        const Named state = named(model.state());
        if (world.rank() == 0) left = state;
      });
    };
    run(false, without);
    run(true, with);
    expect_same_bits(without, with, to_string(weights));
  }
}

TEST(Replicas, RejectMoreBatchesThanThePlanAccumulates) {
  replicate(2, [](const Group& world) {
    ParallelModel model = parallelize(tiny_model({}), trained_with({}), Mesh(world, {{"dp", 2}}));
    train(model, 0);
    const auto again = [&] {
      model.train_step({share_of(tokens_of(0, 0), model.replica(), 2)},
                       {share_of(tokens_of(0, 1), model.replica(), 2)});
    };
    EXPECT_THAT(refusal(again, Errc::kInvalidArgument), HasSubstr("accumulate"));
    model.step();
  });
}

// A peer that waits for its gradients is notified at once, long before the deadline of its group.
TEST(Replicas, EndTogetherIfABlockOrALossThrowsOnOne) {
  for (const bool in_loss : {false, true}) {
    std::promise<void> told;
    const auto all_told = told.get_future().share();
    const auto run = [&](const Group& world) {
      const bool fails = world.rank() == 1;
      const auto fail = [fails](bool here) {
        if (fails && here) throw std::runtime_error("as asked");
      };
      BlockModel net;
      net.blocks.push_back({"only", [&](const Contexts&) {
                              const auto module = std::make_shared<torch::nn::LinearImpl>(4, 4);
                              const auto forward = [module, fail, in_loss](const Tensors& x) {
                                fail(!in_loss);
                                return Tensors{module->forward(x[0])};
                              };
                              return Block{.module = module, .forward = forward};
                            }});
      net.loss = [fail, in_loss](const Tensors& y, const Tensors& t, const Contexts&) {
        fail(in_loss);
        return (y[0] - t[0]).square().mean();
      };
      ParallelModel model = parallelize(net, trained_with({}), Mesh(world, {{"dp", 2}}));
      const at::Tensor x = torch::ones({2, 4});
      if (fails) {
        EXPECT_THROW(model.forward_backward({x}, {x}), std::runtime_error);
        // With a model that still lives.
        EXPECT_EQ(all_told.wait_for(std::chrono::seconds(20)), std::future_status::ready);
        return;
      }
      const auto step = [&] {
        model.forward_backward({x}, {x});
        model.step();
      };
      EXPECT_THROW(step(), Error);
      told.set_value();
    };
    replicate(2, run, std::chrono::minutes(1));
  }
}

// One rank calls `bad`, the other one `good`, which must not wait for the deadline of the groups.
void expect_end_together(const Plan& plan, const std::function<void(ParallelModel&)>& good,
                         const std::function<void(ParallelModel&)>& bad) {
  std::promise<void> told;
  const auto all_told = told.get_future().share();
  const auto run = [&](const Group& world) {
    ParallelModel model = parallelize(tiny_model({}), plan, Mesh(world, {{"dp", 2}}));
    if (world.rank() == 1) {
      EXPECT_NE(refusal([&] { bad(model); }), "accepted");
      // With a model that still lives.
      EXPECT_EQ(all_told.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      return;
    }
    EXPECT_NE(refusal([&] { good(model); }, Errc::kAborted), "accepted");
    told.set_value();
  };
  replicate(2, run, std::chrono::seconds(30));
}

TEST(Replicas, EndTogetherIfOneRefusesItsBatch) {
  const at::Tensor x = tokens_of(0, 0).narrow(0, 0, 4), few = x.narrow(0, 0, 3);
  const auto trains = [&](const Tensors& inputs, const at::Tensor& targets) {
    return [=](ParallelModel& model) {
      model.train_step(inputs, {targets});
      model.step();
    };
  };
  const auto evaluates = [&](const at::Tensor& targets) {
    return [=](ParallelModel& model) { model.evaluate({x}, {targets}); };
  };
  for (const Plan& plan : {Plan{}, Plan{.micro_shards = 2}}) {
    expect_end_together(plan, trains({x}, x), trains({x}, few));
    expect_end_together(plan, trains({x}, x), trains({}, x));
  }
  expect_end_together({}, evaluates(x), evaluates(few));
}

TEST(Replicas, EndTogetherIfABlockCannotBeMadeOnOne) {
  std::promise<void> told;
  const auto all_told = told.get_future().share();
  const auto run = [&](const Group& world) {
    const Mesh mesh(world, {{"dp", 2}});
    BlockModel model = tiny_model({});
    model.blocks[1].make = [&, make = model.blocks[1].make](const Contexts& with) {
      if (world.rank() == 1) throw std::runtime_error("as asked");
      return make(with);
    };
    if (world.rank() == 1) {
      EXPECT_THROW(parallelize(model, {}, mesh), std::runtime_error);
      // With groups that still live.
      EXPECT_EQ(all_told.wait_for(std::chrono::seconds(20)), std::future_status::ready);
      return;
    }
    try {
      parallelize(model, {}, mesh);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Errc::kAborted || error.code() == Errc::kPeerLost)
          << error.what();
    }
    told.set_value();
  };
  replicate(2, run, std::chrono::seconds(30));
}

// Running statistics.
TEST(Replicas, HaveTheBuffersOfRankZeroAfterEachStep) {
  BlockModel net;
  net.blocks.push_back({"norm", [](const Contexts&) {
                          const auto module = std::make_shared<torch::nn::BatchNorm1dImpl>(4);
                          return Block{.module = module, .forward = [module](const Tensors& x) {
                                         return Tensors{module->forward(x[0])};
                                       }};
                        }});
  net.loss = [](const Tensors& y, const Tensors& t, const Contexts&) {
    return (y[0] - t[0]).square().mean();
  };
  const std::vector<std::vector<Axis>> meshes{{{"dp", 2}}, {{"fsdp", 2}}, {{"dp", 2}, {"fsdp", 2}}};
  for (const bool syncs : {true, false}) {
    for (const auto& axes : meshes) {
      const int world_size = axes.size() == 1 ? 2 : 4;
      replicate(world_size, [&](const Group& world) {
        std::shared_ptr<torch::nn::Module> made;
        BlockModel mine = net;
        mine.blocks[0].make = [&made, make = net.blocks[0].make](const Contexts& with) {
          const Block block = make(with);
          made = block.module;
          return block;
        };
        ParallelModel model =
            parallelize(mine, trained_with({.sync_buffers = syncs}), Mesh(world, axes));
        const at::Tensor x = torch::arange(24, torch::kFloat).view({6, 4}) * (world.rank() + 1);
        model.train_step({x}, {x});
        model.step();
        world.barrier();
        const at::Tensor mean = made->named_buffers()["running_mean"].clone();
        at::Tensor zeros = mean.clone();
        world.broadcast(zeros, 0);
        EXPECT_EQ(at::equal(mean, zeros), syncs || world.rank() == 0) << axes[0].name;
        EXPECT_GT(zeros.abs().max().item<double>(), 0);
      });
    }
  }
}

}  // namespace replicas_test
}  // namespace weft::parallel
