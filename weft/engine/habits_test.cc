// Random sequences of what libtorch programs do between two steps: each ends with the weights of
// one process, or is an error of the program that docs/from-pytorch.md names.
//
// WEFT_HABITS=10000:7 tries so many sequences, from this seed on.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "weft/engine/testing/trainers.h"

namespace weft::parallel {
namespace habits_test {

using namespace std::chrono_literals;
using internal::Named;
using internal::Part;
using namespace habits;

// Something that a program does. `is_refused`: where it is an error, or may be one.
struct Habit {
  const char* name;
  std::function<void(Trainer&)> act;
  std::function<bool(const Way&)> is_refused = [](const Way&) { return false; };
};

bool by_weft(const Way& way) { return !way.torch_optimizer; }
bool to_written_weights(const Way& way) { return way.is_shared() || way.divides_weights(); }
bool to_divided_weights(const Way& way) { return way.divides_weights(); }
bool always(const Way&) { return true; }

void between(Trainer& trainer, const std::function<void()>& change) {
  trainer.zero_grad();
  trainer.backward();
  change();
  trainer.step();
}
// A backward pass whose gradients stay on their ranks.
void backward_alone(Trainer& trainer) {
  const auto guard = trainer.no_sync();
  trainer.backward();
}
void zero_grad_of_module(Trainer& trainer, bool set_to_none = true) {
  for (Part& part : trainer.parts) part->zero_grad(set_to_none);
}
void without_grad(const std::function<void()>& change) {
  const at::NoGradGuard guard;
  change();
}
void freeze(Trainer& trainer, bool requires_grad) {
  for (at::Tensor& parameter : trainer.parts[2]->parameters())
    parameter.requires_grad_(requires_grad);
}

const std::vector<Habit> kHabits{
    {"trains", [](Trainer& t) { t.train(); }},
    {"drops gradients by the module",
     [](Trainer& t) {
       zero_grad_of_module(t);
       t.backward();
       t.step();
     },
     &Way::is_zero},
    {"lets gradients add up",
     [](Trainer& t) {
       t.backward();
       t.step();
     },
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
    {"replaces a weight",
     [](Trainer& t) {
       t.parts[1]->fc->bias.set_data(
           torch::arange(t.parts[1]->fc->bias.numel(), at::kDouble) * 0.005 + 0.1 * t.batches);
     }},
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
    {"drops the gradients of a batch",
     [](Trainer& t) {
       t.zero_grad();
       t.backward();
       t.zero_grad();
     },
     [](const Way& way) { return way.module && by_weft(way); }},
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
       for (Part& part : t.parts) part->to(at::kDouble);
     },
     to_divided_weights},
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

struct Sequence {
  const Way* way = nullptr;
  Rule rule = {};
  int ranks = 2;
  std::vector<const Habit*> habits = {};

  bool may_be_refused() const {
    return way->update_in_backward ||
           std::any_of(habits.begin(), habits.end(),
                       [&](const Habit* habit) { return habit->is_refused(*way); });
  }
  std::string text() const {
    std::string text = std::string(way->name) + (rule.adam ? ", AdamW, " : ", SGD, ") +
                       (rule.clip > 0 ? "clipped, " : "") + (rule.width > 10 ? "wide, " : "") +
                       std::to_string(ranks) + " ranks:";
    for (const Habit* habit : habits) text += std::string(" ") + habit->name + ";";
    return text;
  }
};

Sequence sequence_of(unsigned seed, const std::vector<const Way*>& ways) {
  std::mt19937 draw(seed);
  const auto below = [&](std::size_t end) { return draw() % end; };
  Sequence result;
  result.way = ways[below(ways.size())];
  result.rule.adam = below(2) == 1;
  if (below(4) == 0 && !result.way->update_in_backward) result.rule.clip = 0.05;
  result.ranks = below(4) == 0 ? 3 : 2;
  if (below(6) == 0) result.rule.width = 90;  // matrices of several blocks
  // Most sequences have habits that count only: an error would hide what follows.
  const bool refusals = below(4) == 0;
  while (result.habits.size() < 7) {
    const Habit& habit = kHabits[below(kHabits.size())];
    if (refusals || !habit.is_refused(*result.way)) result.habits.push_back(&habit);
  }
  return result;
}

Named run(Trainer& trainer, const Sequence& sequence) {
  trainer.train();
  for (const Habit* habit : sequence.habits) habit->act(trainer);
  trainer.train();
  return trainer.weights();
}

// Throws if the weights of a rank are not those of one process.
void compare(const Group& group, const Sequence& sequence, const Named& expected) {
  const auto trainer = trainer_of(group, *sequence.way, sequence.rule);
  const Named weights = run(*trainer, sequence);
  if (group.rank() == 0 || !weights.empty())
    internal::expect_close(weights, expected, 1e-6, "rank " + std::to_string(group.rank()));
}

Named by_one_process(const Sequence& sequence) {
  Alone alone(sequence.ranks, sequence.rule);
  return run(alone, sequence);
}

// Returns what is wrong with a sequence; empty: nothing. The first line of an error of libtorch has
// weft's text.
std::string fault_of(const Sequence& sequence) {
  const Named expected = by_one_process(sequence);
  try {
    comm::replicate(
        sequence.ranks, [&](const Group& group) { compare(group, sequence, expected); }, 20s);
  } catch (const Error& error) {
    if (error.code() == Errc::kInvalidArgument && sequence.may_be_refused()) return "";
    return error.what();
  } catch (const c10::Error& error) {
    return sequence.may_be_refused() ? "" : error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The shortest sequence that is still wrong.
Sequence shortened(Sequence wrong) {
  for (std::size_t i = wrong.habits.size(); i-- > 0;) {
    Sequence less = wrong;
    less.habits.erase(less.habits.begin() + static_cast<std::ptrdiff_t>(i));
    if (!fault_of(less).empty()) wrong = less;
  }
  return wrong;
}

struct Range {
  unsigned count, first;
};
Range wanted(unsigned count) {
  Range range{count, 1};
  if (const char* text = std::getenv("WEFT_HABITS"))
    std::sscanf(text, "%u:%u", &range.count, &range.first);
  return range;
}

const Habit* habit_of(const std::string& name) {
  for (const Habit& habit : kHabits) {
    if (habit.name == name) return &habit;
  }
  throw std::logic_error("no habit '" + name + "'");
}

TEST(Habits, ThatWereFaultsAreNone) {
  const std::vector<std::vector<const char*>> all{
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
  for (const Way& way : kWays) {
    for (const auto& names : all) {
      Sequence sequence{.way = &way};
      if (names.size() > 1) sequence.rule.width = 90;
      for (const char* name : names) sequence.habits.push_back(habit_of(name));
      const std::string fault = fault_of(sequence);
      EXPECT_TRUE(fault.empty()) << sequence.text() << " " << fault;
    }
  }
}

TEST(Habits, CountAsInOneProcessOrAreAnError) {
  std::vector<const Way*> ways;
  for (const Way& way : kWays) ways.push_back(&way);
  const Range range = wanted(150);
  for (unsigned seed = range.first; seed < range.first + range.count; ++seed) {
    const Sequence sequence = sequence_of(seed, ways);
    const std::string fault = fault_of(sequence);
    if (fault.empty()) continue;
    ADD_FAILURE() << "seed " << seed << ", " << shortened(sequence).text() << " " << fault;
  }
}

// Gradients are messages between processes.
TEST(Habits, CountAsInOneProcessOrAreAnErrorOverTcp) {
  std::vector<const Way*> ways;
  for (const Way& way : kWays) {
    if (!way.is_shared()) ways.push_back(&way);
  }
  const Range range = wanted(8);
  for (unsigned seed = range.first; seed < range.first + range.count; ++seed) {
    const Sequence sequence = sequence_of(seed, ways);
    const Named expected = by_one_process(sequence);
    const auto codes = comm::fork_ranks(sequence.ranks, "tcp", [&](const Group& group) {
      try {
        compare(group, sequence, expected);
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
}  // namespace weft::parallel
