// Checkpoints between different numbers of ranks, bytes in memory and on the network against ZeRO's
// formulas, and offload.
#include <torch/optim/adamw.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "weft/comm/testing/counted_calls.h"
#include "weft/engine/testing/small_model.h"

namespace weft::engine {
namespace sharded_state_test {

using namespace std::chrono_literals;
using internal::blocks_of;
using internal::by_torch;
using internal::make_parts;
using internal::ModelOptions;
using internal::options_of;
using internal::require;

const auto kOptions = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);

Sharded make(const ModelOptions& how, const Group& group, const ShardedOptions& options) {
  return {blocks_of(make_parts(how)), group, optimizer_spec(kOptions, {}), options};
}

TEST(ShardedState, ContinuesUnderAnyOtherNumberOfRanksStageAndPlacement) {
  const ModelOptions how{.tie = true, .freeze = true};
  const auto expected = by_torch<torch::optim::AdamW>(how, kOptions);
  Sharded::NamedTensors saved;
  const auto train_steps = [&](const Group& group, const ShardedOptions& options, int from,
                               int to) {
    auto model = make(how, group, options);
    if (from > 0) model.load_state(group.rank() == 0 ? saved : Sharded::NamedTensors{});
    require(model.steps() == from, "the number of steps was not loaded");
    for (int step = from; step < to; ++step) {
      internal::train(model, group, step, how);
      model.zero_grad();
    }
    auto state = model.state();
    if (group.rank() == 0) saved = std::move(state);
  };
  replicate(
      2, [&](Group group) { train_steps(group, options_of(3, Weights::kPrivate), 0, 2); }, 20s);
  replicate(
      3, [&](Group group) { train_steps(group, options_of(2, Weights::kShared), 2, 3); }, 20s);
  replicate(
      4, [&](Group group) { train_steps(group, options_of(0, Weights::kAuto), 3, 4); }, 20s);
  replicate(
      4,
      [&](Group group) {
        train_steps(group, options_of(1, Weights::kPrivate), 4, internal::kSteps);
      },
      20s);
  replicate(
      1,
      [&](Group group) {
        train_steps(group, options_of(3, Weights::kAuto), internal::kSteps, internal::kSteps);
      },
      20s);
  internal::expect_close(internal::weights_in(saved, expected.weights), expected.weights, 1e-10,
                         "weights after five groups");
}

TEST(ShardedState, IsRejectedOnAllRanksIfItDoesNotFit) {
  replicate(
      2,
      [](Group group) {
        auto model = make({}, group, options_of(3, Weights::kAuto));
        auto state = model.state();
        const auto expect = [&](const Sharded::NamedTensors& given, const std::string& word) {
          try {
            model.load_state(given);
            require(false, "an incomplete state was accepted");
          } catch (const Error& error) {
            require(error.code() == Errc::kInvalidArgument &&
                        std::string(error.what()).find(word) != std::string::npos,
                    error.what());
          }
        };
        auto less = state;
        if (group.rank() == 0) less.erase(less.begin());
        expect(less, "has no 'b0.norm.weight'");
        auto other = state;
        if (group.rank() == 0) other[0].second = at::zeros({3});
        expect(other, "another shape");
        model.load_state(state);
      },
      20s);
}

// Elements of all units, one per block, padded as in unit.h.
std::int64_t padded(const std::vector<internal::Part>& parts, int world) {
  std::int64_t all = 0;
  for (const auto& part : parts) {
    std::int64_t unit = 0;
    for (const auto& p : part->parameters()) unit += (p.numel() + 15) / 16 * 16;
    all += (unit + world - 1) / world * world;
  }
  return all;
}

// In an all-gather, a rank sends its share to all others. In a reduce-scatter, it sends everything
// but its own share.
TEST(ShardedState, SendsTheDocumentedBytes) {
  for (const int world : {2, 4}) {
    replicate(
        world,
        [&](Group group) {
          const std::int64_t psi = padded(make_parts({}), world), slice = psi / world * 8;
          const auto params = static_cast<std::int64_t>(16);
          const std::map<std::string, int> times{{"1private", 2}, {"2private", 2}, {"3private", 3},
                                                 {"1shared", 0},  {"2shared", 0},  {"3shared", 0}};
          for (const auto& [name, psis] : times) {
            auto options = options_of(name[0] - '0', parse_weights(name.substr(1)));
            options.unit_bytes = std::size_t{25} << 20;  // the units are the blocks, as at stage 3
            auto model = make({}, group, options);
            // In the first backward, ranks agree on their samples.
            internal::train(model, group, 0, {});
            model.zero_grad();
            comm::CountedCalls counted;
            internal::loss_of(model.forward(internal::batch_of(0, at::kDouble))).backward();
            model.step();
            auto bytes = counted.take_bytes();
            const std::int64_t passes = name == "3private" ? 2 : 0;
            const std::int64_t sent = (bytes["all_gather"] - 8 * passes) * (world - 1) +
                                      bytes["reduce_scatter"] / world * (world - 1);
            require(sent == psis * slice * (world - 1),
                    name + ": " + std::to_string(sent) + " bytes, not " +
                        std::to_string(psis * slice * (world - 1)));
            require(bytes["all_reduce"] == 8 * (params + 7),
                    name + ": all-reduced " + std::to_string(bytes["all_reduce"]));
          }
        },
        20s);
  }
}

// Equal blocks of Psi parameters in all: 4 bytes each for parameter and gradient, 8 for Adam's
// moments.
TEST(ShardedState, UsesTheMemoryOfZerosFormulas) {
  const ModelOptions how{.type = at::kFloat, .width = 64, .bodies = 8};
  replicate(
      4,
      [&](Group group) {
        const std::int64_t world = group.size(), psi = padded(make_parts(how), 4),
                           block = (64 * 64 + 3 * 64) * 4;
        const auto run = [&](int stage, Weights weights) {
          auto options = options_of(stage, weights, 0);
          options.unit_bytes = static_cast<std::size_t>(block) + 100;
          auto model = make(how, group, options);
          model.memory();
          internal::loss_of(model.forward(internal::batch_of(0, at::kFloat))).backward();
          model.step();
          const auto held = model.memory();
          model.zero_grad();
          const auto rest = model.memory();
          require(rest.gradients == 0, "gradients are held after zero_grad()");
          return std::pair(held, rest);
        };
        const std::int64_t slack = 64 * 9 * 16;  // padding of nine units' arrays
        for (const int stage : {1, 2, 3}) {
          const auto [held, rest] = run(stage, Weights::kPrivate);
          const std::string what = "stage " + std::to_string(stage);
          require(std::abs(held.state - 8 * psi / world) <= slack,
                  what + ": state " + std::to_string(held.state));
          require(std::abs(held.gradients - 4 * psi / world) <= slack,
                  what + ": gradients " + std::to_string(held.gradients));
          require(std::abs(rest.parameters - (stage == 3 ? 4 * psi / world : 4 * psi)) <= slack,
                  what + ": parameters");
          // The peak, while the model computes.
          const std::int64_t whole = 16 * psi, limit3 = whole / world + 2 * block,
                             limit2 = 4 * psi + 12 * psi / world + block;
          const std::int64_t limit = stage == 3   ? limit3
                                     : stage == 2 ? limit2
                                                  : 8 * psi + 12 * psi / world + block;
          require(held.peak <= limit + slack, what + ": peak " + std::to_string(held.peak) +
                                                  ", at most " + std::to_string(limit));
          require(stage != 3 || held.peak <= whole / world + whole / 9 + slack,
                  "more than 1/W and the largest block");
        }
        const auto [held, rest] = run(3, Weights::kShared);
        require(std::abs(rest.parameters - 4 * psi / world) <= slack,
                "a rank's share of shared parameters");
        require(held.peak <= 16 * psi / world + block + slack,
                "shared: peak " + std::to_string(held.peak));
      },
      20s);
}

TEST(ShardedState, ParametersOfInactiveBlocksHaveNoMemory) {
  replicate(
      2,
      [](Group group) {
        const auto parts = make_parts({});
        Sharded model(blocks_of(parts), group, optimizer_spec(kOptions, {}),
                      options_of(3, Weights::kPrivate, 0));
        const auto bytes = [&](std::size_t part) {
          return parts[part]->fc->weight.storage().nbytes();
        };
        const auto all = [&] { return bytes(0) + bytes(1) + bytes(2) + bytes(3); };
        require(all() == 0, "parameters have memory before the first forward");
        std::vector<std::size_t> seen;
        const at::Tensor y = model.forward(internal::batch_of(0, at::kDouble));
        require(all() == 0, "parameters have memory after forward");
        // During the backward of block 1, only this block is in memory.
        const at::Tensor x = internal::batch_of(0, at::kDouble);
        at::Tensor h = model.run(0, {x})[0];
        h.register_hook([&](const at::Tensor&) {
          for (std::size_t part = 0; part < 4; ++part) seen.push_back(bytes(part));
        });
        internal::loss_of(model.run(3, model.run(2, model.run(1, {h})))[0]).backward();
        require(seen.size() == 4 && seen[2] == 0 && seen[3] == 0,
                "later blocks keep their memory in backward");
        require(all() == 0, "parameters have memory after backward");
        for (const auto& part : parts)
          require(part->fc->weight.grad().storage().nbytes() == 0, "a gradient stayed whole");
        model.step();
      },
      20s);
}

std::string mapped() {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str();
}

TEST(ShardedState, LivesInAFileThatIsRemovedAutomatically) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft-offload-test-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  replicate(
      2,
      [&](Group group) {
        const auto expected = by_torch<torch::optim::AdamW>({}, kOptions);
        {
          auto options = options_of(3, Weights::kPrivate);
          options.offload = folder;
          auto model = make({}, group, options);
          require(mapped().find(folder.string()) != std::string::npos,
                  "the state is not in a file of the folder");
          internal::compare(model, group, expected, {});
          require(std::filesystem::is_empty(folder), "the file has a name");
          group.barrier();
        }
        group.barrier();
        require(mapped().find(folder.string()) == std::string::npos, "the file is still mapped");
        try {
          auto options = options_of(3, Weights::kPrivate);
          options.offload = folder / "missing";
          make({}, group, options);
          require(false, "a missing folder was accepted");
        } catch (const Error& error) {
          require(error.code() == Errc::kUnavailable &&
                      std::string(error.what()).find("missing") != std::string::npos,
                  error.what());
        }
      },
      20s);
  std::filesystem::remove_all(folder);
}

TEST(ShardedState, StepRemovesTheLossScale) {
  replicate(
      2,
      [](Group group) {
        auto scaled = make({}, group, options_of(3, Weights::kPrivate)),
             plain = make({}, group, options_of(3, Weights::kPrivate));
        const at::Tensor x =
            internal::part_of(internal::batch_of(0, at::kDouble), group.rank(), group.size());
        (internal::loss_of(scaled.forward(x)) * 1024).backward();
        internal::loss_of(plain.forward(x)).backward();
        const double norm = scaled.grad_norm(), expected = plain.grad_norm();
        require(std::abs(norm - 1024 * expected) <= 1e-9 * norm,
                "the norm is not that of the scaled gradient");
        scaled.step(1.0 / 1024);
        plain.step();
        const auto a = scaled.state(), b = plain.state();
        if (group.rank() == 0)
          internal::expect_close({a.begin(), a.end()}, {b.begin(), b.end()}, 1e-12, "state");
        scaled.zero_grad();
        (internal::loss_of(scaled.forward(x)) *
         (group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1))
            .backward();
        require(!std::isfinite(scaled.grad_norm()), "an overflow on one rank is not detected");
        scaled.zero_grad();
        require(scaled.steps() == 1, "a step was counted");
      },
      20s);
}

}  // namespace sharded_state_test
}  // namespace weft::engine
