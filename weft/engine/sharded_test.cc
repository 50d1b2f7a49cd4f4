// Compares sharded training over 2, 3 and 4 ranks with one process, torch's optimizers and the
// whole batch, over 5 steps. Losses, the last gradients and the weights agree to 1e-10 in float64
// and 1e-5 in float32, relative and absolute.
#include "weft/engine/sharded.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace sharded_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::Case;
using internal::compare;
using internal::kCases;
using internal::make_parts;
using internal::ModelOptions;
using internal::require;

std::vector<Case> cases_of(const Group& group) {
  std::vector<Case> cases;
  for (const Case& c : kCases) {
    if (c.weights == Weights::kPrivate || group.host() != nullptr) cases.push_back(c);
  }
  return cases;
}

ShardedOptions options_of(const Case& c) {
  ShardedOptions options;
  options.stage = c.stage;
  options.weights = c.weights;
  // Small units, so that these small modules have several.
  options.unit_bytes = options.data_parallel.bucket_bytes = 700;
  return options;
}

template <class TorchOptimizer, class Options>
void compare_all(const Group& group, const ModelOptions& how, const Options& options,
                 double clip = 0) {
  auto expected = internal::by_torch<TorchOptimizer>(how, options, {{}}, clip);
  if (clip > 0) {  // after step() the gradients are clipped
    double squares = 0;
    for (const auto& [name, gradient] : expected.gradients)
      squares += gradient.square().sum().template item<double>();
    for (auto& [name, gradient] : expected.gradients)
      gradient.mul_(std::min(1.0, clip / (std::sqrt(squares) + 1e-6)));
  }
  for (const Case& c : cases_of(group)) {
    Sharded model(blocks_of(make_parts(how)), group,
                  optimizer_spec(options, {.max_grad_norm = clip}), options_of(c));
    compare(model, group, expected, how);
  }
}

TEST(Sharded, EqualsOneProcessAtEveryStageAsThreads) {
  for (const int world : {2, 3, 4}) {
    replicate(
        world,
        [](Group group) {
          compare_all<torch::optim::AdamW>(group, {},
                                           torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
        },
        20s);
  }
}

TEST(Sharded, TrainsWithEveryOptimizerInSinglePrecision) {
  replicate(
      3,
      [](Group group) {
        const ModelOptions how{.type = at::kFloat};
        compare_all<torch::optim::SGD>(
            group, how,
            torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true).weight_decay(1e-3));
        compare_all<torch::optim::Adagrad>(
            group, how,
            torch::optim::AdagradOptions(1e-2).lr_decay(0.1).initial_accumulator_value(0.1));
        compare_all<torch::optim::RMSprop>(
            group, how, torch::optim::RMSpropOptions(1e-3).momentum(0.9).centered(true));
        compare_all<torch::optim::Adam>(group, how, torch::optim::AdamOptions(1e-2).amsgrad(true));
      },
      20s);
}

// Stage 0 keeps its state as DataParallel does.
TEST(Sharded, StartsTheSumOfAdagradInDoublePrecision) {
  replicate(
      2,
      [](Group group) {
        const auto options = torch::optim::AdagradOptions(1e-2).initial_accumulator_value(0.1);
        const auto expected = internal::by_torch<torch::optim::Adagrad>({}, options);
        for (const Case& c : cases_of(group)) {
          Sharded model(blocks_of(make_parts({})), group, optimizer_spec(options, {}),
                        options_of(c));
          for (int step = 0; step < internal::kSteps; ++step) {
            model.zero_grad();
            internal::train(model, group, step, {});
          }
          const auto state = model.state();
          require(group.rank() != 0 || !state.empty(), "rank 0 got no state");
          if (state.empty()) continue;
          internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                 1e-14, model.describe());
        }
      },
      20s);
}

TEST(Sharded, ClipsByTheNormOfAllShards) {
  replicate(
      3,
      [](Group group) {
        compare_all<torch::optim::SGD>(group, {}, torch::optim::SGDOptions(0.1).momentum(0.9),
                                       0.05);
      },
      20s);
}

TEST(Sharded, EqualsOneProcessAsProcessesInSharedMemoryAndOverTcp) {
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = comm::fork_ranks(3, transport, [&](const Group& group) {
      compare_all<torch::optim::AdamW>(group, {}, torch::optim::AdamWOptions(1e-2));
      Sharded model(blocks_of(make_parts({})), group,
                    optimizer_spec(torch::optim::SGDOptions(0.1), {}));
      const Weights weights = group.host() != nullptr ? Weights::kShared : Weights::kPrivate;
      require(model.describe() == std::string("ZeRO-3, ") + to_string(weights) +
                                      ": 16 parameters of 4 blocks in 4 units over 3 ranks",
              model.describe());
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
  }
}

TEST(Sharded, ReplicasOfShardsAverageTheirGradients) {
  replicate(
      4,
      [](Group world) {
        const auto options = torch::optim::AdamWOptions(1e-2);
        const auto expected = internal::by_torch<torch::optim::AdamW>({}, options);
        const int mine = world.rank() / 2, place = world.rank() % 2;
        const Group shards = world.subgroup({2 * mine, 2 * mine + 1}, "shards"),
                    replicas = world.subgroup({place, place + 2}, "replicas");
        for (const Case& c : kCases) {
          auto how = options_of(c);
          if (c.stage == 0) continue;
          how.replicas = replicas;
          Sharded model(blocks_of(make_parts({})), shards, optimizer_spec(options, {}), how);
          // Rank 0 of each group of shards compares.
          for (int step = 0; step < internal::kSteps; ++step) {
            model.zero_grad();
            const double loss = internal::train(model, world, step, {});
            require(std::abs(loss - expected.losses[static_cast<std::size_t>(step)]) < 1e-10,
                    model.describe() + ": the loss differs");
          }
          const auto gradients = model.gradients();
          const auto state = model.state();
          if (state.empty()) continue;
          internal::expect_close({gradients.begin(), gradients.end()}, expected.gradients, 1e-10,
                                 "gradients");
          internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                 1e-10, "weights");
        }
      },
      20s);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    parts = make_parts({});
    for (std::size_t i = 0; i < parts.size(); ++i)
      register_module(internal::part_name(i), parts[i]);
  }
  std::vector<internal::Part> parts;
};

TEST(Sharded, SupportsAnyModuleBelowStageThree) {
  replicate(
      2,
      [](Group group) {
        const auto options = torch::optim::AdamWOptions(1e-2);
        const auto expected = internal::by_torch<torch::optim::AdamW>({}, options);
        for (const Case& c : kCases) {
          if (c.stage == 3) continue;
          const auto net = std::make_shared<NetImpl>();
          Sharded model(net, group, optimizer_spec(options, {}), options_of(c));
          for (int step = 0; step < internal::kSteps; ++step) {
            at::Tensor h = internal::part_of(internal::batch_of(step, at::kDouble), group.rank(),
                                             group.size());
            model.zero_grad();
            model.set_samples(static_cast<double>(h.size(0)));
            for (auto& part : net->parts) h = part(h);
            internal::loss_of(h).backward();
            model.step();
          }
          const auto state = model.state();
          if (!state.empty()) {
            internal::expect_close(internal::weights_in(state, expected.weights), expected.weights,
                                   1e-10, model.describe());
          }
          for (const auto& item : net->named_parameters()) {
            internal::expect_close({{"it", item.value().detach()}},
                                   {{"it", expected.weights.at(item.key())}}, 1e-10, item.key());
          }
          group.barrier();
        }
        try {
          Sharded(std::make_shared<NetImpl>(), group, optimizer_spec(options, {}));
          require(false, "stage 3 accepted a module without blocks");
        } catch (const Error& error) {
          require(error.code() == Errc::kInvalidArgument, error.what());
        }
      },
      20s);
}

// The same model by plain torch, with weights rounded to bfloat16 and float32 masters.
internal::Named by_hand_in_bfloat16(double lr) {
  const auto masters = make_parts({.type = at::kFloat});
  for (int step = 0; step < internal::kSteps; ++step) {
    auto rounded = make_parts({.type = at::kFloat});
    at::Tensor h = internal::batch_of(step, at::kBFloat16);
    const at::NoGradGuard guard;
    for (std::size_t i = 0; i < masters.size(); ++i) {
      for (const auto& item : rounded[i]->named_parameters())
        item.value().copy_(masters[i]->named_parameters()[item.key()]);
      rounded[i]->to(at::kBFloat16);
    }
    {
      const at::AutoGradMode learn(true);
      for (const auto& part : rounded) h = internal::Part(part)->forward(h);
      internal::loss_of(h.to(at::kFloat)).backward();
    }
    for (std::size_t i = 0; i < masters.size(); ++i) {
      for (const auto& item : masters[i]->named_parameters()) {
        item.value().sub_(rounded[i]->named_parameters()[item.key()].grad().to(at::kFloat), lr);
      }
    }
  }
  internal::Named weights;
  for (std::size_t i = 0; i < masters.size(); ++i) {
    for (const auto& item : masters[i]->named_parameters())
      weights[internal::part_name(i) + "." + item.key()] = item.value().detach();
  }
  return weights;
}

// Gradients of parts of the batch are rounded separately. The error is 2^-8 of a gradient, times
// the learning rate, in each step.
TEST(Sharded, ComputesInBfloat16WithSinglePrecisionMasters) {
  const auto expected = by_hand_in_bfloat16(0.01);
  replicate(
      2,
      [&](Group group) {
        for (const Case& c : kCases) {
          if (c.stage == 0) continue;
          for (const bool wide : {false, true}) {
            auto options = options_of(c);
            options.compute = at::kBFloat16;
            if (wide) options.reduce = at::kFloat;
            Sharded model(blocks_of(make_parts({.type = at::kFloat})), group,
                          optimizer_spec(torch::optim::SGDOptions(0.01), {}), options);
            for (int step = 0; step < internal::kSteps; ++step) {
              const at::Tensor y = model.forward(internal::part_of(
                  internal::batch_of(step, at::kFloat), group.rank(), group.size()));
              require(y.scalar_type() == at::kBFloat16, "not computed in bfloat16");
              internal::loss_of(y.to(at::kFloat)).backward();
              model.step();
              model.zero_grad();
            }
            const auto state = model.state();
            if (group.rank() == 0)
              internal::expect_close(internal::weights_in(state, expected), expected, 5e-3,
                                     model.describe());
          }
        }
      },
      20s);
}

// A table whose gradient is sparse, and a layer.
struct Words {
  Words() : table(torch::nn::EmbeddingOptions(12, 5).sparse(true)), head(5, 3) {
    table->to(at::kDouble);
    head->to(at::kDouble);
    internal::fill(*head, internal::fill(*table));
  }
  internal::Named weights() const {
    internal::Named all;
    internal::add_weights(all, "table.", *table);
    internal::add_weights(all, "head.", *head);
    return all;
  }
  torch::nn::Embedding table;
  torch::nn::Linear head;
};

at::Tensor words_of(int batch) { return torch::arange(batch, batch + 8).remainder(9); }

internal::Named words_by_torch(const torch::optim::SGDOptions& options) {
  Words words;
  std::vector<at::Tensor> params = words.head->parameters();
  params.push_back(words.table->weight);
  torch::optim::SGD optimizer(params, options);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (const int batch : {2 * step, 2 * step + 1})
      internal::loss_of(words.head->forward(words.table->forward(words_of(batch)))).backward();
    optimizer.step();
  }
  return words.weights();
}

TEST(Sharded, TrainsATableWithSparseGradientsAtEveryStage) {
  const auto options = torch::optim::SGDOptions(0.1);
  const auto expected = words_by_torch(options);
  replicate(
      2,
      [&](Group group) {
        for (const Case& c : cases_of(group)) {
          const Words words;
          Sharded model({block("table", words.table), block("head", words.head)}, group,
                        optimizer_spec(options, {}), options_of(c));
          const auto backward = [&](int batch) {
            const at::Tensor mine =
                words_of(batch).chunk(2)[static_cast<std::size_t>(group.rank())];
            internal::loss_of(model.forward(mine)).backward();
          };
          for (int step = 0; step < 3; ++step) {
            model.zero_grad();
            {
              const auto kept = model.no_sync();
              backward(2 * step);
            }
            backward(2 * step + 1);
            model.step();
          }
          const auto state = model.state();
          if (group.rank() == 0)
            internal::expect_close(internal::weights_in(state, expected), expected, 1e-10,
                                   model.describe());
        }
      },
      20s);
}

TEST(Sharded, SkipsWeightDecayOfVectorsIfTheSpecSaysSo) {
  replicate(
      2,
      [](Group group) {
        const auto blocks = blocks_of(make_parts({}));
        auto spec = optimizer_spec(torch::optim::SGDOptions(0.1).weight_decay(0.5), {});
        spec.no_decay = vectors_of(blocks);
        Sharded model(blocks, group, spec);
        const auto before = model.state();
        // The gradients are zero, so only weight decay changes weights.
        (model.forward(internal::batch_of(0, at::kDouble)) * 0).sum().backward();
        model.step();
        const auto after = model.state();
        for (std::size_t i = 0; i < after.size(); ++i) {
          if (after[i].second.dim() == 0) continue;
          const double factor = after[i].second.dim() == 1 ? 1 : 0.95;
          require(at::allclose(after[i].second, before[i].second * factor, 1e-12, 1e-12),
                  after[i].first);
        }
      },
      20s);
}

}  // namespace sharded_test
}  // namespace weft::engine
