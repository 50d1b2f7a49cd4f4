// Shared by all reducers: warm-up steps, momentum before the codec, and the memory of unsent
// values.
#pragma once

#include "weft/compress/internal/remembered.h"
#include "weft/compress/reducer.h"

namespace weft::compress::internal {

// A range of a buffer.
struct Range {
  std::int64_t first = 0, count = 0;
  std::size_t size() const { return static_cast<std::size_t>(count); }
};

// A Reducer with counted stages. Warm-up steps sum uncompressed values.
class StagedReducer : public Reducer {
 public:
  StagedReducer(const Spec& spec, const Unit& unit);
  void begin(float* values, std::int64_t step) final;
  std::optional<Round> next() final;
  std::vector<std::span<float>> state() final;
  std::vector<std::span<const float>> common_state() final;
  void commit() final;
  void rollback() final;
  bool is_in_range() const override { return true; }

 protected:
  // State of the codec itself. Some may be empty.
  virtual std::vector<Remembered*> memory() = 0;
  // The part of memory() that is equal on all ranks.
  virtual std::vector<Remembered*> common_memory() { return {}; }
  // Ends momentum for numbers whose residual is zero.
  void end_momentum(std::span<const float> residual);
  // True if, after warm-up, gradients enter with the whole effect of momentum (reducer.h).
  void take_momentum_at_once() { at_once_ = true; }
  // `stage` counts from 0 in each step.
  virtual std::optional<Round> stage(int stage) = 0;
  std::span<float> values() const { return {values_, static_cast<std::size_t>(unit_.count)}; }
  // `part` distinguishes encodings of one step and buffer.
  Draw draw(std::uint32_t part) const;
  bool delta() const { return spec_.memory == Memory::kDelta; }
  // With delta, at the end of a step: the result is `agreed`. It and `mine` forget the numbers that
  // are not finite in it.
  void give_agreed(std::span<float> agreed, std::span<float> mine);

  const Spec spec_;
  const Unit unit_;

 private:
  void take_momentum();
  std::vector<Remembered*> all_memory();

  Remembered velocity_;  // empty if momentum is not applied here
  bool at_once_ = false;
  float* values_ = nullptr;
  std::int64_t step_ = 0;
  int stage_ = 0;
};

// Memory of the unsent values of one rank, for a range of numbers.
class Unsent {
 public:
  Unsent(Memory kind, std::int64_t count)
      : kind_(kind), values_(kind == Memory::kNone ? 0 : static_cast<std::size_t>(count)) {}

  // Begins a step, in which encode() is called for the whole range.
  void begin();
  // Encodes `values`, which start at `first` of the range, together with their memory. Overwrites
  // `values`.
  void encode(const Codec& codec, std::int64_t first, std::span<float> values, const Draw& draw,
              std::vector<std::byte>& wire);
  std::span<float> all() { return values_.now(); }
  Remembered* memory() { return &values_; }

 private:
  const Memory kind_;
  // feedback: unsent values; delta: the value that the other ranks have.
  Remembered values_;
  std::span<const float> before_;  // feedback: values_ at the begin of the step
};

// Sets the numbers of a memory to 0 where the result is not finite. The result is equal on all
// ranks, so with delta their memories still add up to the sum that they share.
void forget_not_finite(std::span<const float> result, std::span<float> memory);

// The shard that the rank sums in the sharded exchange. Empty for the last ranks if shards are
// rounded up.
Range shard_of(const Unit& unit, int rank);
// The codec for a range of the unit's numbers, with the positions of its tensors.
std::unique_ptr<Codec> make_codec(const Spec& spec, const Unit& unit, const Range& range);
// Bytes of the longest shard.
std::int64_t shard_bytes(const Spec& spec, const Unit& unit);

std::unique_ptr<Reducer> make_plain(const Spec& spec, const Unit& unit);
std::unique_ptr<Reducer> make_sum(const Spec& spec, const Unit& unit);
std::unique_ptr<Reducer> make_gather(const Spec& spec, const Unit& unit);
std::unique_ptr<Reducer> make_sharded(const Spec& spec, const Unit& unit);
// Null if no matrix becomes smaller.
std::unique_ptr<Reducer> make_low_rank(const Spec& spec, const Unit& unit);

// Bytes that a rank sends in an all-reduce of this many bytes.
constexpr std::int64_t all_reduce_bytes(std::int64_t bytes, int world) {
  return 2 * bytes * (world - 1) / world;
}

}  // namespace weft::compress::internal
