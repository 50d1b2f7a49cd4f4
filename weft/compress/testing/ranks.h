// For tests: runs the ranks of a world in one thread, executes their collectives, and makes
// gradients.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>

#include "weft/base/random.h"
#include "weft/compress/reducer.h"
#include "weft/kernels/reduce.h"

namespace weft::compress::internal {

using Floats = std::vector<float>;

// Runs the ranks one after the other and executes their collectives.
class Ranks {
 public:
  Ranks(const std::string& spec, Unit unit, int world) : unit_(std::move(unit)) {
    for (int rank = 0; rank < world; ++rank) {
      unit_.rank = rank;
      unit_.world = world;
      reducers_.push_back(make_reducer(parse(spec), unit_));
    }
  }

  // Replaces each rank's values by its result.
  void step(std::vector<Floats>& values) {
    sent_ = 0;
    for (std::size_t rank = 0; rank < reducers_.size(); ++rank)
      reducers_[rank]->begin(values[rank].data(), step_);
    for (;;) {
      std::vector<Round> rounds;
      for (auto& reducer : reducers_) {
        if (auto round = reducer->next()) rounds.push_back(*round);
      }
      if (rounds.empty()) break;
      if (rounds.size() != reducers_.size())
        throw std::runtime_error("the ranks disagree on the number of rounds");
      run(rounds);
    }
    ++step_;
  }

  // The steps so far count, or the one since does not.
  void commit() {
    for (auto& reducer : reducers_) reducer->commit();
    kept_step_ = step_;
  }
  void rollback() {
    for (auto& reducer : reducers_) reducer->rollback();
    step_ = kept_step_;
  }

  Reducer& operator[](int rank) { return *reducers_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(reducers_.size()); }
  // Bytes sent by a rank in the last step, as reducer.h counts them.
  std::int64_t sent() const { return sent_; }

  void copy_state_from(Ranks& other) {
    step_ = other.step_;
    for (int rank = 0; rank < size(); ++rank) {
      auto mine = (*this)[rank].state();
      const auto theirs = other[rank].state();
      if (mine.size() != theirs.size()) throw std::runtime_error("the state has other parts");
      for (std::size_t i = 0; i < mine.size(); ++i)
        std::copy(theirs[i].begin(), theirs[i].end(), mine[i].begin());
    }
  }

 private:
  void run(const std::vector<Round>& rounds) {
    const Round& first = rounds[0];
    const auto world = static_cast<std::int64_t>(rounds.size());
    const std::int64_t bytes = first.count * static_cast<std::int64_t>(size_of(first.dtype));
    for (const Round& round : rounds) {
      if (round.how != first.how || round.dtype != first.dtype || round.count != first.count)
        throw std::runtime_error("the ranks disagree on a round");
    }
    if (first.how == Round::How::kSum || first.how == Round::How::kMax) {
      std::vector<void*> data;
      for (const Round& round : rounds) data.push_back(round.data);
      kernels::reduce(data.data(), static_cast<int>(world), data.data(), static_cast<int>(world),
                      {.dtype = first.dtype,
                       .op = first.how == Round::How::kSum ? ReduceOp::kSum : ReduceOp::kMax,
                       .count = first.count});
      if (first.how == Round::How::kSum) sent_ += 2 * bytes * (world - 1) / world;
      return;
    }
    sent_ += (world - 1) * bytes;
    for (std::int64_t to = 0; to < world; ++to) {
      for (std::int64_t from = 0; from < world; ++from) {
        const auto* source =
            static_cast<const std::byte*>(rounds[static_cast<std::size_t>(from)].send);
        if (first.how == Round::How::kAllToAll) source += to * bytes;
        std::memcpy(
            static_cast<std::byte*>(rounds[static_cast<std::size_t>(to)].data) + from * bytes,
            source, static_cast<std::size_t>(bytes));
      }
    }
  }

  Unit unit_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::int64_t step_ = 0, kept_step_ = 0;
  std::int64_t sent_ = 0;
};

// A buffer of two matrices, with a vector between them and one after them.
inline Unit unit_of(std::int64_t count) {
  Unit unit{.count = count};
  if (count >= 3000)
    unit.matrices = {{0, 40, 25}, {1000, 30, 1}, {1030, 12, 100}, {2230, count - 2230, 1}};
  return unit;
}

inline std::vector<Floats> gradients(int world, std::int64_t count, std::uint64_t seed) {
  std::vector<Floats> all;
  for (int rank = 0; rank < world; ++rank) {
    Random random(seed, 0, static_cast<std::uint64_t>(rank));
    all.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) {
      const float u = random.uniform_float() - 0.4f;
      all.back().push_back(u * u * u);
    }
  }
  return all;
}

inline std::vector<double> sum_of(const std::vector<Floats>& all) {
  std::vector<double> sum(all[0].size(), 0);
  for (const auto& one : all) {
    for (std::size_t i = 0; i < one.size(); ++i) sum[i] += static_cast<double>(one[i]);
  }
  return sum;
}

}  // namespace weft::compress::internal
