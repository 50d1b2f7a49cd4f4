// Pipelines over 1 to 4 ranks against one process on the whole batch: 1e-10 in float64; and against
// each other, bit for bit.
#include "weft/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include "weft/comm/testing/fork_ranks.h"
#include "weft/observe/trace.h"
#include "weft/parallel/pipeline/testing/parity.h"
#include "weft/schedule/pipeline/messages.h"
#include "weft/schedule/pipeline/proof.h"

namespace weft::parallel {
namespace {

namespace lists = schedule::pipeline;
using pipeline_parity::Algorithm;
using pipeline_parity::expect_same;
using pipeline_parity::input_of;
using pipeline_parity::kFeatures;
using pipeline_parity::kSamples;
using pipeline_parity::Link;
using pipeline_parity::options_of;
using pipeline_parity::target_of;
using pipeline_parity::Trained;
using pipeline_parity::wave;
using testing::HasSubstr;

constexpr int kBlocks = 9, kSteps = 5;
constexpr Algorithm kTraining[] = {Algorithm::kGPipe,        Algorithm::kOneForwardOneBackward,
                                   Algorithm::kInterleaved,  Algorithm::kZeroBubbleH1,
                                   Algorithm::kZeroBubbleH2, Algorithm::kZeroBubbleV,
                                   Algorithm::kAutomatic};

using Optimizer = torch::optim::SGD;
const auto kRate = torch::optim::SGDOptions(0.2).momentum(0.9);

const Trained& one_process() {
  static const Trained trained = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < kBlocks; ++i) net->push_back(Link(i));
    Optimizer optim(net->parameters(), kRate);
    Trained result;
    for (int step = 0; step < kSteps; ++step) {
      optim.zero_grad();
      const at::Tensor loss = torch::mse_loss(net->forward(input_of(step)), target_of(step));
      loss.backward();
      optim.step();
      result.losses.push_back(loss.item<double>());
    }
    for (const auto& p : net->named_parameters()) {
      result.gradients[p.key()] = p.value().grad();
      result.weights[p.key()] = p.value().detach();
    }
    return result;
  }();
  return trained;
}

Trained train(const Group& group, const PipelineOptions& options) {
  Pipeline model(
      group, kBlocks, [](int i) { return block(Link(i)); }, options);
  Optimizer optim(model.parameters(), kRate);
  Trained result;
  for (int step = 0; step < kSteps; ++step) {
    optim.zero_grad();
    const Tensors x = model.has_first_stage() ? Tensors{input_of(step)} : Tensors{};
    const Tensors t = model.has_last_stage() ? Tensors{target_of(step)} : Tensors{};
    result.losses.push_back(model.train_step(x, t));
    optim.step();
  }
  for (const auto& [name, p] : model.named_parameters()) {
    result.gradients[name] = p.grad();
    result.weights[name] = p.detach();
  }
  return result;
}

// Results of all ranks together. Every rank has the same losses.
Trained train_on(int ranks, const PipelineOptions& options) {
  Trained all;
  std::mutex mutex;
  replicate(ranks, [&](const Group& group) {
    const Trained mine = train(group, options);
    const std::lock_guard lock(mutex);
    if (all.losses.empty()) all.losses = mine.losses;
    EXPECT_EQ(all.losses, mine.losses);
    all.gradients.insert(mine.gradients.begin(), mine.gradients.end());
    all.weights.insert(mine.weights.begin(), mine.weights.end());
  });
  return all;
}

void expect_parity(int ranks, int micro_batches) {
  const Trained alone = train_on(1, options_of(Algorithm::kGPipe, micro_batches));
  expect_same(alone, one_process(), false, "micro-batches");
  for (const Algorithm algorithm : kTraining) {
    const std::string what = std::string(lists::to_string(algorithm)) + " on " +
                             std::to_string(ranks) + ", " + std::to_string(micro_batches);
    const Trained got = train_on(ranks, options_of(algorithm, micro_batches));
    expect_same(got, one_process(), false, what);
    expect_same(got, alone, true, what + ", bits");
  }
}

TEST(Pipeline, EqualsOneProcessUnderEveryScheduleWithTheSameBitsUnderAll) {
  expect_parity(2, 3);
  expect_parity(3, 7);
}

TEST(PipelineSlow, EqualsOneProcessForAllNumbersOfRanksAndMicroBatches) {
  for (const int ranks : {2, 3, 4}) {
    for (int micro_batches = 1; micro_batches <= 8; ++micro_batches)
      expect_parity(ranks, micro_batches);
  }
}

TEST(Pipeline, EqualsOneProcessOnProcessesOverSharedMemoryAndTcp) {
  const Trained expected = one_process();
  for (const char* transport : {"shm", "tcp"}) {
    const auto codes = comm::fork_ranks(3, transport, [&](const Group& group) {
      torch::set_num_threads(1);
      for (const Algorithm algorithm :
           {Algorithm::kOneForwardOneBackward, Algorithm::kInterleaved, Algorithm::kZeroBubbleV}) {
        const Trained got = train(group, options_of(algorithm, 4));
        for (std::size_t i = 0; i < got.losses.size(); ++i) {
          if (std::abs(got.losses[i] - expected.losses[i]) > 1e-10) return 1;
        }
        for (const auto& [name, tensor] : got.weights) {
          if (!torch::allclose(tensor, expected.weights.at(name), 1e-10, 1e-10)) return 2;
        }
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0)) << transport;
  }
}

// Number of messages and bytes that all ranks send in a step.
at::Tensor sent_in_a_step(const Group& group, Algorithm algorithm, int micro_batches) {
  Pipeline model(
      group, kBlocks, [](int i) { return block(Link(i)); }, options_of(algorithm, micro_batches));
  observe::Trace trace;
  const observe::Trace::Use use(&trace, "rank");
  trace.record(true);
  model.train_step({input_of(0)}, {target_of(0)});
  trace.record(false);
  at::Tensor sent = torch::zeros({2}, at::kLong);
  for (const observe::Span& span : trace.take().spans) {
    if (span.name == "weft:send" || span.name == "pipeline:send")
      sent += torch::tensor({std::int64_t{1}, span.bytes});
  }
  group.all_reduce(sent);
  return sent;
}

// In shared memory, a header is stored beside its tensors. Over messages, it is sent separately.
TEST(Pipeline, SendsTheDocumentedMessages) {
  constexpr int kRanks = 3, kMicro = 4;
  for (const Algorithm algorithm : kTraining) {
    const int each =
        algorithm == Algorithm::kInterleaved || algorithm == Algorithm::kZeroBubbleV ? 2 : 1;
    const lists::Request request{
        .algorithm = algorithm, .ranks = kRanks, .micro_batches = kMicro, .virtual_stages = each};
    const std::int64_t crossings = lists::traffic(lists::make(request)).total,
                       headers = crossings / 2, borders = headers / kMicro;
    const std::int64_t bytes = borders * 2 * kSamples * kFeatures * 8 + headers * 512;
    const at::Tensor in_place = torch::tensor({crossings, bytes}),
                     by_messages = torch::tensor({crossings + headers, bytes});
    replicate(kRanks, [&](const Group& group) {
      const at::Tensor sent = sent_in_a_step(group, algorithm, kMicro);
      EXPECT_TRUE(torch::equal(sent, in_place)) << lists::to_string(algorithm) << sent;
    });
    const auto codes = comm::fork_ranks(kRanks, "tcp", [&](const Group& group) {
      torch::set_num_threads(1);
      return torch::equal(sent_in_a_step(group, algorithm, kMicro), by_messages) ? 0 : 1;
    });
    EXPECT_EQ(codes, std::vector<int>(kRanks, 0)) << lists::to_string(algorithm);
  }
}

// Of a step, without the 8 bytes of the loss that each rank reads of the last stage.
TEST(Pipeline, CountsWhatStagesReadOfEachOthersMemory) {
  constexpr int kRanks = 3, kMicro = 4;
  replicate(kRanks, [&](const Group& group) {
    Pipeline model(
        group, kBlocks, [](int i) { return block(Link(i)); },
        options_of(Algorithm::kGPipe, kMicro));
    const std::uint64_t before = group.traffic().shared_bytes;
    model.train_step({input_of(0)}, {target_of(0)});
    at::Tensor moved =
        torch::tensor({static_cast<std::int64_t>(group.traffic().shared_bytes - before)});
    group.all_reduce(moved);
    const std::int64_t bytes = (kRanks - 1) * 2 * kSamples * kFeatures * 8;
    EXPECT_GE(moved.item<std::int64_t>(), bytes);
    EXPECT_LE(moved.item<std::int64_t>(), bytes + 8 * kRanks);
  });
}

// x · w, counted from its forward until its part of the graph is gone.
struct Counted : torch::autograd::Function<Counted> {
  struct Mark : torch::CustomClassHolder {
    explicit Mark(int* alive_) : alive(alive_) {}
    ~Mark() override { --*alive; }
    int* alive;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w, int* alive) {
    ctx->save_for_backward({x, w});
    ++*alive;
    ctx->saved_data["mark"] = c10::IValue::make_capsule(c10::make_intrusive<Mark>(alive));
    return x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& g) {
    const auto saved = ctx->get_saved_variables();
    at::Tensor of_x, of_w;
    if (ctx->needs_input_grad(0)) of_x = g[0] * saved[1];
    if (ctx->needs_input_grad(1)) of_w = (g[0] * saved[0]).sum();
    return {of_x, of_w, at::Tensor()};
  }
};
struct CountingImpl : torch::nn::Module {
  CountingImpl(int* alive_, int* most_) : alive(alive_), most(most_) {
    w = register_parameter("w", torch::ones({}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = Counted::apply(x, w, alive);
    *most = std::max(*most, *alive);
    return y;
  }
  int *alive, *most;
  at::Tensor w;
};

TEST(Pipeline, HoldsAsManyActivationsAsItsSchedule) {
  for (const Algorithm algorithm : kTraining) {
    constexpr int kRanks = 3, kMicro = 8;
    const int each =
        algorithm == Algorithm::kInterleaved || algorithm == Algorithm::kZeroBubbleV ? 2 : 1;
    const lists::Request request{
        .algorithm = algorithm, .ranks = kRanks, .micro_batches = kMicro, .virtual_stages = each};
    const lists::Schedule schedule = lists::make(request);
    replicate(kRanks, [&](const Group& group) {
      int alive = 0, most = 0;
      const auto make = [&](int) { return block(std::make_shared<CountingImpl>(&alive, &most)); };
      Pipeline model(group, kRanks * each, make, options_of(algorithm, kMicro));
      model.train_step({input_of(0)}, {target_of(0)});
      EXPECT_EQ(alive, 0);
      EXPECT_EQ(most, lists::count_held(schedule, group.rank()))
          << lists::to_string(algorithm) << ", rank " << group.rank();
      EXPECT_LE(most, lists::most_held(request, group.rank()));
    });
  }
}

// Micro-batches of sequences of different lengths, each with a mask that is passed with the
// activations to the last stage.
TEST(Pipeline, SupportsMicroBatchesOfDifferentShapesAndTensorsThatPassStages) {
  const auto masked = [](const Tensors& y, const Tensors& t) {
    return ((y[0] - t[0]) * y[1].to(at::kDouble)).square().mean() + y[2].mean();
  };
  const auto make = [](int i) -> Block {
    const Link link(i);
    return {.module = link.ptr(), .forward = [link, i](const Tensors& x) {
              Tensors y{Link(link)(x[0]), x[1]};
              // Made by the first block for the loss.
              y.push_back(i == 0 ? x[0].mean(1).tanh() * y[0].mean(1) : x[2]);
              return y;
            }};
  };
  std::vector<Tensors> inputs, targets;
  for (const int length : {4, 1, 7}) {
    const auto n = static_cast<std::int64_t>(inputs.size()) + 1;
    inputs.push_back(
        {wave({n, length, kFeatures}, length),
         torch::arange(length * kFeatures).view({1, length, kFeatures}).remainder(3) > 0});
    targets.push_back({wave({n, length, kFeatures}, length + 1)});
  }
  std::map<std::string, at::Tensor> expected;
  double expected_loss = 0;
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(make(i));
  for (std::size_t b = 0; b < inputs.size(); ++b) {
    Tensors x = inputs[b];
    for (const Block& block : blocks) x = block.forward(x);
    const at::Tensor loss = masked(x, targets[b]) * (static_cast<double>(b + 1) / 6);
    loss.backward();
    expected_loss += loss.item<double>();
  }
  for (const Algorithm algorithm : {Algorithm::kOneForwardOneBackward, Algorithm::kZeroBubbleV}) {
    replicate(2, [&](const Group& group) {
      Pipeline model(group, 4, make, {.algorithm = algorithm, .micro_batches = 3, .loss = masked});
      EXPECT_NEAR(model.train_step(inputs, targets), expected_loss, 1e-12);
      for (const auto& [name, p] : model.named_parameters()) {
        const int block = name[0] - '0';
        const auto whole = blocks[static_cast<std::size_t>(block)]
                               .module->named_parameters()[name.substr(2)]
                               .grad();
        EXPECT_TRUE(torch::allclose(p.grad(), whole, 1e-10, 1e-10)) << name;
      }
    });
  }
}

// Block 2 works in place. With a sample, rank 0 times it alone too.
TEST(Pipeline, AStageMayBeginWithALayerThatWorksInPlace) {
  const auto make = [](int i) -> Block {
    if (i != 2) return block(Link(i));
    return block(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(make(i));
  Tensors x{input_of(0)};
  for (const Block& one : blocks) x = one.forward(x);
  const at::Tensor loss = torch::mse_loss(x[0], target_of(0));
  loss.backward();
  for (const bool timed : {false, true}) {
    replicate(2, [&](const Group& group) {
      PipelineOptions options = options_of(Algorithm::kZeroBubbleH1, 3);
      if (timed) {
        options.sample = {input_of(0)};
      } else {
        options.cuts = {2};
      }
      Pipeline model(group, 4, make, options);
      EXPECT_NEAR(model.train_step({input_of(0)}, {target_of(0)}), loss.item<double>(), 1e-12);
      for (const auto& [name, p] : model.named_parameters()) {
        const int number = name[0] - '0';
        const auto whole = blocks[static_cast<std::size_t>(number)]
                               .module->named_parameters()[name.substr(2)]
                               .grad();
        EXPECT_TRUE(torch::allclose(p.grad(), whole, 1e-10, 1e-10)) << name;
      }
    });
  }
}

TEST(Pipeline, EvaluatesAndPredictsWithoutGradientsAndInEvaluationMode) {
  torch::nn::Sequential whole(Link(0), Link(1), Link(2), Link(3));
  const at::Tensor y = whole->forward(input_of(0));
  const double loss = torch::mse_loss(y, target_of(0)).item<double>();
  const auto make = [](int i) {
    const Link link(i);
    Block block = engine::block(link);
    block.forward = [link](const Tensors& x) {
      return Tensors{torch::dropout(Link(link)(x[0]), 0.5, link->is_training())};
    };
    return block;
  };
  for (const Algorithm algorithm : {Algorithm::kGPipe, Algorithm::kZeroBubbleV}) {
    replicate(2, [&](const Group& group) {
      Pipeline model(group, 4, make, options_of(algorithm, 3));
      EXPECT_NEAR(model.evaluate({input_of(0)}, {target_of(0)}), loss, 1e-12);
      const Tensors predicted = model.predict({input_of(0)});
      ASSERT_EQ(predicted.size(), model.has_last_stage() ? 1 : 0);
      if (model.has_last_stage()) {
        EXPECT_TRUE(torch::allclose(predicted[0], y, 1e-12, 1e-12));
      }
      for (const at::Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
      // Dropout is on again.
      EXPECT_GT(std::abs(model.train_step({input_of(0)}, {target_of(0)}) - loss), 1e-6);
    });
  }
}

// A block that takes much longer than the others gets its own stage. Each rank makes only its own
// blocks; rank 0 also makes each block once to time it.
TEST(Pipeline, CutsByTheTimesOfItsBlocksAndMakesOnlyItsOwn) {
  std::mutex mutex;
  std::map<int, std::vector<int>> made;
  replicate(2, [&](const Group& group) {
    const auto make = [&](int i) {
      const std::lock_guard lock(mutex);
      made[group.rank()].push_back(i);
      const Link link(i);
      Block block = engine::block(link);
      if (i == 4) {
        block.forward = [link](const Tensors& x) {
          Link layer(link);
          const at::Tensor large = torch::ones({300, 300}, at::kDouble);
          return Tensors{layer(x[0]) + 0 * (large.mm(large)[0][0] - 300)};
        };
      }
      return block;
    };
    PipelineOptions options = options_of(Algorithm::kOneForwardOneBackward, 2);
    options.sample = {input_of(0)};
    const Pipeline model(group, 6, make, options);
    EXPECT_THAT(model.cuts(), testing::AnyOf(testing::ElementsAre(4), testing::ElementsAre(5)));
  });
  const int cut = made[1][0];
  for (const int block : made[1]) EXPECT_GE(block, cut);
  EXPECT_EQ(static_cast<int>(made[0].size()), 6 + cut);
  EXPECT_EQ(static_cast<int>(made[1].size()), 6 - cut);
}

// Each call of `make` returns the same blocks.
TEST(Pipeline, LeavesTheBlocksThatItTimesAsTheyWere) {
  replicate(2, [](const Group& group) {
    std::vector<torch::nn::BatchNorm1d> norms;
    for (int i = 0; i < 4; ++i) {
      norms.emplace_back(kFeatures);
      norms.back()->to(at::kDouble);
    }
    const at::Tensor of_the_caller = torch::ones({kFeatures}, at::kDouble);
    norms[0]->bias.mutable_grad() = of_the_caller.clone();
    PipelineOptions options = options_of(Algorithm::kOneForwardOneBackward, 2);
    options.sample = {input_of(0)};
    const Pipeline model(
        group, 4, [&](int i) { return block(norms[static_cast<std::size_t>(i)]); }, options);
    EXPECT_TRUE(at::equal(norms[0]->bias.grad(), of_the_caller));
    norms[0]->bias.mutable_grad().reset();
    for (const torch::nn::BatchNorm1d& norm : norms) {
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
      EXPECT_TRUE(at::equal(norm->running_mean, torch::zeros({kFeatures}, at::kDouble)));
      EXPECT_FALSE(norm->weight.grad().defined() || norm->bias.grad().defined());
    }
  });
}

}  // namespace
}  // namespace weft::parallel
