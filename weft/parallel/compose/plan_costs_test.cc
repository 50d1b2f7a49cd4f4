// The bytes that a step under a plan sends, and the memory that it takes.
#include <torch/optim/adamw.h>

#include "weft/comm/testing/counted_calls.h"
#include "weft/parallel/compose/testing/tiny.h"

namespace weft::parallel {
namespace plan_costs_test {

using namespace internal;

Plan plan_of(Plan plan) {
  plan.seed = kSeed;
  plan.optimizer = optimizer_spec(torch::optim::AdamWOptions(1e-2).weight_decay(0.01), {});
  return plan;
}

std::int64_t aligned(std::int64_t elements) { return (elements + 15) / 16 * 16; }

// Elements of a block of tiny_model(), with each parameter padded as in Sharded, and the number of
// its parameters.
std::pair<std::int64_t, int> elements_of(const std::string& block, const Tiny& how) {
  const std::int64_t w = how.width;
  if (block == "words") return {aligned(kWords * w), 1};
  if (block == "head") return {2 * aligned(w) + aligned(kWords * w), 3};
  return {2 * aligned(w) + 2 * aligned(2 * w * w) + aligned(2 * w) + aligned(w), 6};
}

// float64, two stages of two or three blocks, untied weights, micro-batches of 3 and 3 or of 2 and
// 3 samples.
TEST(PlanCosts, AStepSendsTheDocumentedBytes) {
  const Tiny how{.tied = false};
  constexpr int kMicroBatches = 2;
  replicate(4, [&](const Group& group) {
    const Mesh mesh(group, {{"pp", 2}, {"fsdp", 2}});
    ParallelModel model =
        parallelize(tiny_model(how),
                    plan_of({.micro_batches = kMicroBatches, .weights = Weights::kPrivate}), mesh);
    train(model, 0);
    model.step();
    comm::CountedCalls counted;
    train(model, 1);
    model.step();
    const auto bytes = counted.take_bytes();
    const bool first = mesh.coordinate("pp") == 0;
    std::int64_t elements = 0;
    int parameters = 0;
    for (const char* block :
         first ? std::vector{"words", "body.0"} : std::vector{"body.1", "body.2", "head"}) {
      const auto [size, number] = elements_of(block, how);
      elements += size;
      parameters += number;
    }
    const std::int64_t rows = share_of(tokens_of(0, 0), mesh.coordinate("fsdp"), 2).size(0);
    std::map<std::string, std::int64_t> expected;
    // Gradients are sent once. Blocks are gathered for each micro-batch, in forward and backward,
    // with 8 bytes per pass.
    expected["reduce_scatter"] = 8 * elements;
    expected["all_gather"] = 2 * kMicroBatches * (8 * elements / 2 + 8);
    // Three numbers tell the ranks of several stages of skipped steps and of other learning rates.
    expected["all_reduce"] = 8 * (parameters + 7) + 16 + 3 * 8;
    expected["broadcast"] = 8;
    expected["send"] = 8 * rows * kLength * how.width + (first ? 512 * kMicroBatches : 0);
    for (const auto& [operation, right] : expected) {
      EXPECT_EQ(bytes.count(operation) > 0 ? bytes.at(operation) : 0, right)
          << operation << " of rank " << group.rank();
    }
  });
}

TEST(PlanCosts, ParametersGradientsAndStateUseTheMemoryOfZerosFormulas) {
  const Tiny how{.width = 64, .tied = false};
  for (const int stage : {1, 2, 3}) {
    replicate(4, [&](const Group& group) {
      const Mesh mesh(group, {{"pp", 2}, {"fsdp", 2}});
      const Plan plan{.micro_batches = 2, .zero_stage = stage, .weights = Weights::kPrivate};
      ParallelModel model = parallelize(tiny_model(how), plan_of(plan), mesh);
      train(model, 0);
      model.step();
      const auto memory = model.memory();
      std::int64_t elements = 0;
      for (const char* block : mesh.coordinate("pp") == 0
                                   ? std::vector{"words", "body.0"}
                                   : std::vector{"body.1", "body.2", "head"}) {
        elements += elements_of(block, how).first;
      }
      // Rajbhandari et al., figure 1, for float64 and Adam's two arrays; after a step, gradients
      // are kept as shards.
      const auto psi = static_cast<double>(8 * elements);
      const auto near = [&](std::int64_t bytes, double right, const char* what) {
        EXPECT_NEAR(static_cast<double>(bytes), right, 0.1 * right) << what << ", ZeRO-" << stage;
      };
      near(memory.parameters, stage == 3 ? psi / 2 : psi, "parameters");
      near(memory.gradients, psi / 2, "gradients");
      near(memory.state, psi, "state");
    });
  }
}

}  // namespace plan_costs_test
}  // namespace weft::parallel
