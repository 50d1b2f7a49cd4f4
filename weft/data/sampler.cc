#include "weft/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::data {

Range share_of(std::int64_t count, int rank, int world) {
  // Uses count / world and count % world, so that no product overflows.
  const std::int64_t whole = count / world, rest = count % world;
  const auto cut = [&](std::int64_t r) { return whole * r + rest * r / world; };
  return {cut(rank), cut(rank + 1)};
}

Range share_of(std::int64_t count, int rank, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const auto cut = [&](int r) {
    const double before = std::accumulate(weights.begin(), weights.begin() + r, 0.0);
    return r == static_cast<int>(weights.size())
               ? count
               : std::llround(static_cast<double>(count) * (before / sum));
  };
  return {cut(rank), cut(rank + 1)};
}

Sampler::Sampler(SamplerOptions options) : options_(std::move(options)) {
  WEFT_REQUIRE(options_.size > 0, "Sampler: the data set is empty");
  WEFT_REQUIRE(options_.batch > 0, "Sampler: a batch must have at least one sample, got " +
                                       std::to_string(options_.batch));
  WEFT_REQUIRE(options_.world > 0 && options_.rank >= 0 && options_.rank < options_.world,
               "Sampler: rank " + std::to_string(options_.rank) + " is not in a world of " +
                   std::to_string(options_.world));
  WEFT_REQUIRE(options_.group > 0 && options_.world % options_.group == 0,
               "Sampler: groups of " + std::to_string(options_.group) +
                   " ranks do not divide a world of " + std::to_string(options_.world));
  WEFT_REQUIRE(options_.least > 0, "Sampler: the smallest share must have a sample, got " +
                                       std::to_string(options_.least));
  WEFT_REQUIRE(!options_.draw || options_.order == Order::kShuffled,
               "Sampler: parts are drawn in the shuffled order only");
  options_.batch = std::min(options_.batch, options_.size);  // so that no sum or product overflows
}

void Sampler::set_state(SamplerState state) {
  WEFT_REQUIRE(state.epoch >= 0 && state.position >= 0 && state.position <= options_.size,
               "Sampler: epoch " + std::to_string(state.epoch) + ", position " +
                   std::to_string(state.position) + " is outside a data set of " +
                   std::to_string(options_.size) + "; was the checkpoint made with other data?");
  state_ = state;
}

void Sampler::set_weights(std::vector<double> weights) {
  WEFT_REQUIRE(options_.order == Order::kShuffled,
               "Sampler: weights are for the shuffled order only; sequential blocks are not split");
  WEFT_REQUIRE(!options_.draw || weights.empty(),
               "Sampler: batches of which parts are drawn are split evenly");
  WEFT_REQUIRE(weights.empty() || static_cast<int>(weights.size()) == options_.world,
               "Sampler: " + std::to_string(weights.size()) + " weights for a world of " +
                   std::to_string(options_.world));
  const bool good = std::all_of(weights.begin(), weights.end(),
                                [](double weight) { return std::isfinite(weight) && weight >= 0; });
  WEFT_REQUIRE(weights.empty() || (good && *std::max_element(weights.begin(), weights.end()) > 0),
               "Sampler: weights must be finite, none negative, at least one positive");
  weights_ = std::move(weights);
}

std::int64_t Sampler::batches() const {
  const std::int64_t all = (options_.size + options_.batch - 1) / options_.batch;
  if (options_.order == Order::kShuffled) return all;
  return (all - options_.rank + options_.world - 1) / options_.world;
}

std::optional<Share> Sampler::next() {
  if (options_.draw) return next_drawn();
  return options_.order == Order::kShuffled ? next_shuffled() : next_block();
}

void Sampler::make_order() {
  if (order_epoch_ == state_.epoch) return;
  order_ = permutation(options_.size, options_.seed, static_cast<std::uint64_t>(state_.epoch));
  order_epoch_ = state_.epoch;
}

// By weights, unless a share is too small then.
Range Sampler::part_of(std::int64_t size, int rank) const {
  bool by_weights = !weights_.empty();
  for (int other = 0; by_weights && other < options_.world; ++other) {
    const std::int64_t share = share_of(size, other, weights_).size();
    by_weights = share == 0 || share >= options_.least;
  }
  if (by_weights) return share_of(size, rank, weights_);
  if (options_.least == 1) return share_of(size, rank, options_.world);
  const auto ranks =
      static_cast<int>(std::clamp<std::int64_t>(size / options_.least, 1, options_.world));
  return rank < ranks ? share_of(size, rank, ranks) : Range{size, size};
}

// Of the batch that begins at `first`.
Share Sampler::share_of_batch(std::int64_t first, int rank) const {
  const std::int64_t size = std::min(options_.batch, options_.size - first);
  const Range range = part_of(size, rank);
  const int leader = rank - rank % options_.group;
  const std::int64_t of_group =
      part_of(size, leader + options_.group - 1).end - part_of(size, leader).begin;
  const auto begin = order_.begin() + first;
  // The end of this batch may be the begin of the next one.
  const std::int64_t place = range.size() > 0 ? first + range.begin : first;
  return {{begin + range.begin, begin + range.end}, state_.epoch, place, size, of_group};
}

std::optional<Share> Sampler::next_drawn() {
  const auto draw = options_.draw();
  if (!draw) return std::nullopt;
  const std::int64_t first = state_.position + draw->batch * options_.batch;
  WEFT_REQUIRE(
      draw->batch >= 0 && first < options_.size && draw->rank >= 0 && draw->rank < options_.world,
      "Sampler: batch " + std::to_string(draw->batch) + " of rank " + std::to_string(draw->rank) +
          " is outside the epoch");
  make_order();
  return share_of_batch(first, draw->rank);
}

std::optional<Share> Sampler::next_shuffled() {
  if (state_.position == options_.size) {
    end_epoch();
    return std::nullopt;
  }
  make_order();
  Share share = share_of_batch(state_.position, options_.rank);
  state_.position += share.global_size;
  return share;
}

std::optional<Share> Sampler::next_block() {
  const std::int64_t begin =
      std::min(state_.position + options_.rank * options_.batch, options_.size);
  const std::int64_t end = std::min(begin + options_.batch, options_.size);
  if (begin == end) {
    end_epoch();
    return std::nullopt;
  }
  Share share{std::vector<std::int64_t>(static_cast<std::size_t>(end - begin)), state_.epoch, begin,
              end - begin, end - begin};
  std::iota(share.indices.begin(), share.indices.end(), begin);
  state_.position = std::min(state_.position + options_.world * options_.batch, options_.size);
  return share;
}

void Sampler::end_epoch() { state_ = {state_.epoch + 1, 0}; }

}  // namespace weft::data
