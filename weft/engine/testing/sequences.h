// Test helper: random sequences of what libtorch programs do between two steps (habits). Each ends
// with the weights of one process, or is an error that its habits allow.
//
// WEFT_HABITS=10000:7 tries so many sequences, from this seed on.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>

#include "weft/engine/testing/trainers.h"

namespace weft::engine::habits {

// Something that a program does. `is_refused`: where it is an error, or may be one. `fits`: where a
// program can do it.
template <class Way>
struct Habit {
  const char* name;
  std::function<void(Trainer&)> act;
  std::function<bool(const Way&)> is_refused = [](const Way&) { return false; };
  std::function<bool(const Way&)> fits = [](const Way&) { return true; };
};

template <class Way>
struct Sequence {
  const Way* way = nullptr;
  Rule rule = {};
  int ranks = 2;
  std::vector<const Habit<Way>*> habits = {};

  bool may_be_refused() const {
    return way->update_in_backward ||
           std::any_of(habits.begin(), habits.end(),
                       [&](const Habit<Way>* habit) { return habit->is_refused(*way); });
  }
  std::string text() const {
    std::string text = std::string(way->name) + (rule.adam ? ", AdamW, " : ", SGD, ") +
                       (rule.clip > 0 ? "clipped, " : "") + (rule.width > 10 ? "wide, " : "") +
                       std::to_string(ranks) + " ranks:";
    for (const Habit<Way>* habit : habits) text += std::string(" ") + habit->name + ";";
    return text;
  }
};

// A Way has a name, a tolerance, update_in_backward (it refuses more), ranks(wanted) and
// replicas(ranks).
template <class Way>
class Sequences {
 public:
  using MakeTrainer =
      std::function<std::unique_ptr<Trainer>(const Group&, const Way&, const Rule&)>;
  using MakeAlone = std::function<std::unique_ptr<Trainer>(const Way&, const Rule&)>;
  // `habits` outlive it. `make_alone` gives the trainer of one process; null: Alone.
  Sequences(std::vector<const Way*> ways, const std::vector<Habit<Way>>& habits, MakeTrainer make,
            MakeAlone make_alone = nullptr)
      : ways_(std::move(ways)),
        habits_(habits),
        make_(std::move(make)),
        make_alone_(std::move(make_alone)) {}

  Sequence<Way> draw(unsigned seed) const {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t end) { return random() % end; };
    Sequence<Way> result;
    result.way = ways_[below(ways_.size())];
    // Adam makes large steps of small gradients, and so of the errors of a codec.
    result.rule.adam = below(2) == 1 && result.way->tolerance < 1e-3;
    if (below(4) == 0 && !result.way->update_in_backward) result.rule.clip = 0.05;
    result.ranks = result.way->ranks(below(4) == 0 ? 3 : 2);
    if (below(6) == 0) result.rule.width = 90;  // matrices of several blocks
    fit(result);
    // Most sequences have habits that count only: an error would hide what follows.
    const bool refusals = below(4) == 0;
    while (result.habits.size() < 7) {
      const Habit<Way>& habit = habits_[below(habits_.size())];
      if (!habit.fits(*result.way)) continue;
      if (refusals || !habit.is_refused(*result.way)) result.habits.push_back(&habit);
    }
    return result;
  }

  // False if a program cannot do one of them.
  bool fit(const Way& way, const std::vector<const char*>& names) const {
    const Sequence<Way> sequence = named(way, names);
    return std::all_of(sequence.habits.begin(), sequence.habits.end(),
                       [&](const Habit<Way>* habit) { return habit->fits(way); });
  }

  Sequence<Way> named(const Way& way, const std::vector<const char*>& names) const {
    Sequence<Way> sequence{.way = &way, .ranks = way.ranks(2)};
    fit(sequence);
    for (const std::string name : names) {
      const auto found = std::find_if(habits_.begin(), habits_.end(),
                                      [&](const Habit<Way>& habit) { return habit.name == name; });
      if (found == habits_.end()) throw std::logic_error("no habit '" + name + "'");
      sequence.habits.push_back(&*found);
    }
    return sequence;
  }

  Named by_one_process(const Sequence<Way>& sequence) const {
    if (make_alone_) return run(*make_alone_(*sequence.way, sequence.rule), sequence);
    Alone alone(sequence.way->replicas(sequence.ranks), sequence.rule);
    return run(alone, sequence);
  }

  // Throws if the weights of a rank are not those of one process.
  void compare(const Group& group, const Sequence<Way>& sequence, const Named& expected) const {
    const auto trainer = make_(group, *sequence.way, sequence.rule);
    const Named weights = run(*trainer, sequence);
    if (group.rank() == 0 || !weights.empty())
      small_model::expect_close(weights, expected, sequence.way->tolerance,
                                "rank " + std::to_string(group.rank()));
  }

  // Returns what is wrong with a sequence; empty: nothing. The first line of an error of libtorch
  // has weft's text.
  std::string fault_of(const Sequence<Way>& sequence) const {
    const Named expected = by_one_process(sequence);
    try {
      comm::replicate(
          sequence.ranks, [&](const Group& group) { compare(group, sequence, expected); },
          std::chrono::seconds(20));
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

  void expect_right(const Sequence<Way>& sequence) const {
    const std::string fault = fault_of(sequence);
    EXPECT_TRUE(fault.empty()) << sequence.text() << " " << fault;
  }

  void expect_right(unsigned count) const {
    const auto [all, first] = wanted(count);
    for (unsigned seed = first; seed < first + all; ++seed) {
      const Sequence<Way> sequence = draw(seed);
      const std::string fault = fault_of(sequence);
      if (fault.empty()) continue;
      ADD_FAILURE() << "seed " << seed << ", " << shortened(sequence).text() << " " << fault;
    }
  }

  // The number of sequences and the first seed.
  static std::pair<unsigned, unsigned> wanted(unsigned count) {
    unsigned first = 1;
    if (const char* text = std::getenv("WEFT_HABITS")) std::sscanf(text, "%u:%u", &count, &first);
    return {count, first};
  }

 private:
  // Gives the model what the way needs.
  static void fit(Sequence<Way>& sequence) {
    const Way& way = *sequence.way;
    if constexpr (requires { way.type; }) sequence.rule.type = way.type;
    if constexpr (requires { way.split; }) sequence.rule.split = way.split;
    if constexpr (requires { way.width; }) {
      if (way.width > 0) sequence.rule.width = way.width;
    }
  }
  static Named run(Trainer& trainer, const Sequence<Way>& sequence) {
    trainer.train();
    for (const Habit<Way>* habit : sequence.habits) habit->act(trainer);
    trainer.train();
    return trainer.weights();
  }
  // The shortest sequence that is still wrong.
  Sequence<Way> shortened(Sequence<Way> wrong) const {
    for (std::size_t i = wrong.habits.size(); i-- > 0;) {
      Sequence<Way> less = wrong;
      less.habits.erase(less.habits.begin() + static_cast<std::ptrdiff_t>(i));
      if (!fault_of(less).empty()) wrong = less;
    }
    return wrong;
  }

  const std::vector<const Way*> ways_;
  const std::vector<Habit<Way>>& habits_;
  const MakeTrainer make_;
  const MakeAlone make_alone_;
};

// These functions do the same under every form of training.
inline void between(Trainer& trainer, const std::function<void()>& change) {
  trainer.zero_grad();
  trainer.backward();
  change();
  trainer.step();
}
inline void add_up(Trainer& trainer) {
  trainer.backward();
  trainer.step();
}
inline void drop_batch(Trainer& trainer) {
  trainer.zero_grad();
  trainer.backward();
  trainer.zero_grad();
}
inline void step_without_gradients(Trainer& trainer) {
  trainer.zero_grad();
  trainer.step();
}
// Two batches in one step. `set_batches` tells the model how many there are.
inline void accumulate(Trainer& trainer, const std::function<void(int)>& set_batches) {
  trainer.zero_grad();
  set_batches(2);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor loss = trainer.loss({});
    if (loss.defined()) (loss / 2).backward();
  }
  trainer.step();
  set_batches(1);
}
inline void clamp_while_block_runs(Trainer& trainer) {
  trainer.parts[1]->look = [](small_model::PartImpl& part) {
    part.fc->weight.data().clamp_(-0.3, 0.3);
  };
  trainer.train();
  trainer.parts[1]->look = nullptr;
}
inline void without_grad(const std::function<void()>& change) {
  const at::NoGradGuard guard;
  change();
}
inline void freeze(Trainer& trainer, bool requires_grad) {
  for (at::Tensor& parameter : trainer.parts[2]->parameters())
    parameter.requires_grad_(requires_grad);
}

}  // namespace weft::engine::habits
