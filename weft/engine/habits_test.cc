// Random sequences of what libtorch programs do between two steps: each ends with the weights of
// one process, or is an error of the program that docs/module-changes.md names
// (testing/sequences.h).
#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

#include "weft/engine/testing/sequences.h"

namespace weft::engine {
namespace habits_test {

using namespace habits;

bool by_weft(const Way& way) { return !way.torch_optimizer; }
bool to_written_weights(const Way& way) { return way.is_shared() || way.divides_weights(); }
bool to_divided_weights(const Way& way) { return way.divides_weights(); }
bool always(const Way&) { return true; }
bool has_two(const Way& way) { return way.split > 0; }
// Gradients that other ranks have already count.
bool to_sent_gradients(const Way& way) {
  return way.module && by_weft(way) && way.update_in_backward;
}

bool never(const Way&) { return false; }

// A frozen layer would stay frozen.
void restart(Trainer& trainer) {
  freeze(trainer, true);
  trainer.restart();
  trainer.set_lr(0.05);
}
// While a block runs.
void look_at(Trainer& trainer, const std::function<void(small_model::PartImpl&)>& look) {
  trainer.parts[1]->look = look;
  trainer.loss({});
  trainer.parts[1]->look = nullptr;
}
// A backward pass whose gradients stay on their ranks.
void backward_alone(Trainer& trainer) {
  const auto guard = trainer.no_sync();
  trainer.backward();
}
void zero_grad_of_module(Trainer& trainer, bool set_to_none = true) {
  for (small_model::Part& part : trainer.parts) part->zero_grad(set_to_none);
}
const std::vector<Habit<Way>> kHabits{
    {"trains", [](Trainer& t) { t.train(); }},
    {"drops gradients by the module",
     [](Trainer& t) {
       zero_grad_of_module(t);
       t.backward();
       t.step();
     },
     &Way::is_zero},
    {"lets gradients add up", add_up,
     [](const Way& way) { return by_weft(way) && !way.is_zero(); }},
    {"runs forward only", [](Trainer& t) { t.loss({}); }},
    {"evaluates", [](Trainer& t) { without_grad([&] { t.loss({}); }); }},
    {"sets the learning rate", [](Trainer& t) { t.set_lr(0.02); }},
    {"sets the learning rate before step()",
     [](Trainer& t) { between(t, [&] { t.set_lr(0.03); }); }},
    {"writes a weight", [](Trainer& t) { without_grad([&] { t.parts[1]->fc->weight.mul_(0.8); }); },
     to_written_weights},
    {"writes a weight through data()", [](Trainer& t) { t.parts[1]->fc->weight.data().mul_(0.8); },
     to_written_weights},
    {"writes one value through data()",
     [](Trainer& t) { t.parts[3]->fc->weight.data()[2][3] += 0.5; }, to_written_weights},
    {"writes a weight before step()",
     [](Trainer& t) {
       between(t, [&] { without_grad([&] { t.parts[1]->fc->weight.mul_(0.8); }); });
     },
     to_written_weights},
    {"replaces a weight", replace_bias},
    {"freezes a layer", [](Trainer& t) { freeze(t, false); }},
    {"trains it again", [](Trainer& t) { freeze(t, true); }},
    {"freezes it before step()", [](Trainer& t) { between(t, [&] { freeze(t, false); }); },
     by_weft},
    {"clips gradients",
     [](Trainer& t) {
       between(t, [&] { torch::nn::utils::clip_grad_norm_(t.parameters(), 0.01); });
     },
     by_weft},
    {"scales a gradient",
     [](Trainer& t) { between(t, [&] { t.parts[0]->fc->bias.grad().mul_(3); }); }, by_weft},
    {"drops a gradient before step()",
     [](Trainer& t) { between(t, [&] { t.parts[0]->fc->bias.mutable_grad().reset(); }); }, by_weft},
    {"adds two losses",
     [](Trainer& t) {
       t.zero_grad();
       const at::Tensor first = t.loss({}), second = t.loss({});
       (first + second).backward();
       t.step();
     }},
    {"accumulates",
     [](Trainer& t) {
       t.zero_grad();
       {
         const auto guard = t.no_sync();
         t.backward();
         t.backward();
       }
       t.backward();
       t.step();
     }},
    {"drops the gradients of a batch", drop_batch, to_sent_gradients},
    {"drops the gradients of two batches",
     [](Trainer& t) {
       t.zero_grad();
       t.backward();
       t.zero_grad();
       t.backward({.shares = Pass::Shares::kUneven});
       t.zero_grad();
     },
     to_sent_gradients},
    {"drops the gradients of a batch of rank 0",
     [](Trainer& t) {
       t.zero_grad();
       t.backward({.shares = Pass::Shares::kRankZero});
       t.zero_grad();
     },
     [](const Way& way) { return way.module && by_weft(way); }},
    {"drops the gradients of a batch and accumulates",
     [](Trainer& t) {
       t.zero_grad();
       t.backward();
       t.zero_grad();
       backward_alone(t);
       t.backward();
       t.step();
     },
     to_sent_gradients},
    {"drops the gradients of a batch before step()",
     [](Trainer& t) { between(t, [&] { t.zero_grad(); }); }, by_weft},
    {"adds to used gradients and drops them",
     [](Trainer& t) {
       t.backward();
       t.zero_grad();
     },
     to_sent_gradients},
    {"drops the gradients of a batch in no_sync()",
     [](Trainer& t) {
       t.zero_grad();
       backward_alone(t);
       t.zero_grad();
     }},
    {"drops them by the module",
     [](Trainer& t) {
       zero_grad_of_module(t);
       backward_alone(t);
       zero_grad_of_module(t);
       t.backward({.shares = Pass::Shares::kUneven});
       t.step();
     },
     &Way::is_zero},
    {"fills them with zeros",
     [](Trainer& t) {
       t.zero_grad();
       backward_alone(t);
       zero_grad_of_module(t, /*set_to_none=*/false);
       t.backward({.shares = Pass::Shares::kUneven});
       t.step();
     },
     &Way::is_zero},
    {"adds to used gradients in no_sync() and drops them",
     [](Trainer& t) {
       backward_alone(t);
       t.zero_grad();
     }},
    {"adds to used gradients in no_sync()",
     [](Trainer& t) {
       backward_alone(t);
       t.backward();
       t.step();
     },
     [](const Way& way) { return by_weft(way) && !way.is_zero(); }},
    {"divides a batch unevenly", [](Trainer& t) { t.train({.shares = Pass::Shares::kUneven}); }},
    {"gives a batch to rank 0 only",
     [](Trainer& t) { t.train({.shares = Pass::Shares::kRankZero}); }},
    {"takes a smaller batch", [](Trainer& t) { t.train({.rows = 7}); }},
    {"leaves out a part", [](Trainer& t) { t.train({.without = {3}}); }},
    {"leaves out a part on one rank",
     [](Trainer& t) {
       t.train({.without = {-1, 3}});
     }},
    {"runs a part twice", [](Trainer& t) { t.train({.twice = 2}); }},
    {"penalizes the gradient by its input", [](Trainer& t) { t.train({.penalty = true}); },
     to_divided_weights},
    {"steps again", [](Trainer& t) { between(t, [&] { t.step(); }); }, by_weft},
    {"steps without gradients",
     [](Trainer& t) {
       t.zero_grad();
       t.step();
     },
     by_weft},
    {"goes backward twice",
     [](Trainer& t) {
       t.zero_grad();
       const at::Tensor loss = t.loss({});
       loss.backward({}, /*retain_graph=*/true);
       loss.backward();
       t.step();
     },
     always},
    {"saves its state", [](Trainer& t) { t.save(); }, to_divided_weights},
    {"goes back to the saved state", [](Trainer& t) { t.load(); }, to_divided_weights},
    {"saves and loads the module",
     [](Trainer& t) {
       std::stringstream file;
       torch::save(t.parts[1], file);
       torch::load(t.parts[1], file);
     },
     to_divided_weights},
    {"converts to the same type",
     [](Trainer& t) {
       for (small_model::Part& part : t.parts) part->to(t.type);
     },
     to_divided_weights},
    {"is made parallel again", restart, never, &Way::module},
    {"is made parallel again before step()", [](Trainer& t) { between(t, [&] { restart(t); }); },
     by_weft, &Way::module},
    {"is made parallel again and goes back to the saved state",
     [](Trainer& t) {
       t.save();
       t.train();
       restart(t);
       t.load();
     },
     never, &Way::module},
    {"steps one optimizer only",
     [](Trainer& t) {
       t.zero_grad();
       t.backward();
       t.step_of(1);
       t.zero_grad_of(0);
     },
     to_sent_gradients, has_two},
    {"drops the gradients of one optimizer",
     [](Trainer& t) {
       t.zero_grad();
       t.backward();
       t.zero_grad_of(0);
       t.step();
     },
     by_weft, has_two},
    {"trains each optimizer by batches of its own",
     [](Trainer& t) {
       for (const std::size_t optimizer : {0U, 1U}) {
         t.zero_grad_of(optimizer);
         t.backward();
         t.step_of(optimizer);
       }
     },
     by_weft, has_two},
    {"writes held values", [](Trainer& t) { t.scale_held(0.9); }, never, &Way::is_sharded},
    {"keeps a view of a weight",
     [](Trainer& t) {
       at::Tensor view;
       look_at(t, [&](small_model::PartImpl& part) { view = part.fc->weight.t(); });
       view.norm().item<double>();
     },
     to_divided_weights},
    {"clamps a weight while its block runs", clamp_while_block_runs, to_written_weights},
    {"replaces a weight before step()", [](Trainer& t) { between(t, [&] { replace_bias(t); }); },
     to_written_weights},
    {"keeps a copy of a weight",
     [](Trainer& t) {
       at::Tensor copy;
       look_at(t, [&](small_model::PartImpl& part) { copy = part.fc->weight.detach().clone(); });
       copy.norm().item<double>();
     }},
    {"reads weights",
     [](Trainer& t) {
       for (const at::Tensor& parameter : t.parameters()) parameter.norm().item<double>();
     },
     to_divided_weights},
    {"reads gradients",
     [](Trainer& t) {
       for (const at::Tensor& parameter : t.parameters()) {
         if (parameter.grad().defined()) parameter.grad().norm().item<double>();
       }
     },
     by_weft},
};

Sequences<Way> sequences(bool with_shared = true) {
  std::vector<const Way*> ways;
  for (const Way& way : kWays) {
    if (with_shared || !way.is_shared()) ways.push_back(&way);
  }
  return {ways, kHabits, trainer_of};
}

TEST(Habits, ThatWereFaultsAreNone) {
  constexpr std::size_t kForEachWay = 3;
  const std::vector<std::vector<const char*>> all{
      {"adds to used gradients and drops them", "drops the gradients of two batches"},
      {"writes held values", "writes one value through data()"},
      {"saves and loads the module", "adds to used gradients and drops them"},
      {"adds two losses"},
      {"runs a part twice"},
      {"saves its state", "trains", "goes back to the saved state"},
      {"replaces a weight", "saves its state"},
      {"runs forward only", "gives a batch to rank 0 only"},
      {"drops the gradients of a batch", "leaves out a part"},
      {"sets the learning rate before step()"},
      {"writes one value through data()", "replaces a weight"},
      {"writes one value through data()", "saves its state", "goes back to the saved state"},
      {"leaves out a part", "trains"},
  };
  const auto tries = sequences();
  for (const Way& way : kWays) {
    for (std::size_t i = 0; i < (way.is_plain() ? all.size() : kForEachWay); ++i) {
      if (!tries.fit(way, all[i])) continue;
      Sequence<Way> sequence = tries.named(way, all[i]);
      if (all[i].size() > 1 && way.width == 0) sequence.rule.width = 90;
      tries.expect_right(sequence);
    }
  }
}

// Chunks of shared weights then have parameters that are not neighbors.
TEST(Habits, ALoadedWeightCountsAfterAFirstStepThatLeavesOutAPart) {
  const auto tries = sequences();
  for (const Way& way : kWays) {
    if (!way.module || !way.is_plain()) continue;
    tries.expect_right(
        tries.named(way, {"is made parallel again", "leaves out a part", "replaces a weight"}));
  }
}

TEST(Habits, CountAsInOneProcessOrAreAnError) { sequences().expect_right(95); }

// Gradients are messages between processes.
TEST(Habits, CountAsInOneProcessOrAreAnErrorOverTcp) {
  const auto tries = sequences(/*with_shared=*/false);
  const auto [count, first] = tries.wanted(8);
  for (unsigned seed = first; seed < first + count; ++seed) {
    const auto sequence = tries.draw(seed);
    const Named expected = tries.by_one_process(sequence);
    const auto codes = comm::fork_ranks(sequence.ranks, "tcp", [&](const Group& group) {
      try {
        tries.compare(group, sequence, expected);
      } catch (const Error& error) {
        if (error.code() == Errc::kInternal || !sequence.may_be_refused()) throw;
      } catch (const c10::Error&) {
        if (!sequence.may_be_refused()) throw;
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(sequence.ranks), 0))
        << "seed " << seed << ", " << sequence.text();
  }
}

}  // namespace habits_test
}  // namespace weft::engine
