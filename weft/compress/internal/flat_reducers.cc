// The exchanges of codecs that encode single numbers: sum, gather and sharded. See reducer.h.
#include <algorithm>
#include <cstring>
#include <limits>

#include "weft/base/error.h"
#include "weft/compress/internal/codecs.h"
#include "weft/compress/internal/staged.h"
#include "weft/kernels/reduce.h"

namespace weft::compress::internal {
namespace {

// A codec, the memory of this rank's gradient and, with delta, the state that all ranks share.
class FlatReducer : public StagedReducer {
 public:
  FlatReducer(const Spec& spec, const Unit& unit)
      : StagedReducer(spec, unit),
        codec_(make_codec(spec, unit, {0, unit.count})),
        unsent_(spec.memory, unit.count),
        agreed_(delta() ? static_cast<std::size_t>(unit.count) : 0) {}
  bool is_in_range() const override { return is_in_range_; }

 protected:
  std::vector<Remembered*> memory() override { return {unsent_.memory(), &agreed_}; }
  std::vector<Remembered*> common_memory() override { return {&agreed_}; }
  // Called before the first encode() of a step.
  void begin_step() {
    out_.clear();
    unsent_.begin();
    agreed_.change();
    is_in_range_ = true;
  }
  // Encodes values that start at `first`, together with their memory. Overwrites the values.
  void encode(const Codec& codec, std::int64_t first, std::span<float> values, const Draw& draw) {
    unsent_.encode(codec, first, values, draw, out_);
  }
  // Called when all values of this step are encoded.
  void encoded() {
    if (codec_->sparse()) end_momentum(unsent_.all());
  }
  // Returns the array in which decoded values are summed.
  std::span<float> sums() {
    if (delta()) return agreed_.now();
    std::fill(values().begin(), values().end(), 0.0f);
    return values();
  }
  // Called when all codes are added to sums().
  void finish() {
    if (delta()) give_agreed(agreed_.now(), unsent_.all());
    is_in_range_ =
        spec_.kind != Kind::kF16 ||
        kernels::is_within(values().data(), unit_.count, std::numeric_limits<float>::max());
  }
  std::span<const std::byte> received(int block, std::int64_t bytes) const {
    return std::span(in_).subspan(static_cast<std::size_t>(block * bytes),
                                  static_cast<std::size_t>(bytes));
  }
  // Length of the longest encoding of all ranks, if lengths differ.
  Round ask_longest(std::int64_t mine) {
    longest_ = mine;
    return {Round::How::kMax, DType::kI64, 1, &longest_, nullptr};
  }
  // Sends `out_`: one block, or one for each rank.
  Round swap(Round::How how, std::int64_t bytes) {
    in_.resize(static_cast<std::size_t>(bytes * unit_.world));
    return {how, DType::kU8, bytes, in_.data(), out_.data()};
  }

  const std::unique_ptr<Codec> codec_;
  Unsent unsent_;
  Remembered agreed_;
  std::vector<std::byte> out_, in_;
  std::int64_t longest_ = 0;

 private:
  bool is_in_range_ = true;
};

class SumReducer final : public FlatReducer {
 public:
  SumReducer(const Spec& spec, const Unit& unit) : FlatReducer(spec, unit) {
    if (spec.kind == Kind::kRandomK) take_momentum_at_once();
  }
  std::int64_t bytes_sent() const override {
    return all_reduce_bytes(codec_->bytes(unit_.count), unit_.world);
  }
  const char* exchange() const override { return "sum"; }

 private:
  std::optional<Round> stage(int stage) override {
    if (stage == 0) {
      begin_step();
      encode(*codec_, 0, values(), draw(0));
      const DType type = *codec_->sums();
      return Round{Round::How::kSum, type, static_cast<std::int64_t>(out_.size() / size_of(type)),
                   out_.data(), nullptr};
    }
    codec_->add(out_, draw(0), sums());
    finish();
    return std::nullopt;
  }
};

class GatherReducer final : public FlatReducer {
 public:
  using FlatReducer::FlatReducer;
  std::int64_t bytes_sent() const override {
    return (unit_.world - 1) * codec_->bytes(unit_.count);
  }
  const char* exchange() const override { return "gather"; }

 private:
  std::optional<Round> stage(int stage) override {
    if (stage == 0) {
      begin_step();
      encode(*codec_, 0, values(), draw(0));
      encoded();
      longest_ = static_cast<std::int64_t>(out_.size());
      if (!codec_->fixed()) return ask_longest(longest_);
    }
    if (stage == (codec_->fixed() ? 0 : 1)) {
      out_.resize(static_cast<std::size_t>(longest_));
      return swap(Round::How::kAllGather, longest_);
    }
    const auto sum = sums();
    for (int rank = 0; rank < unit_.world; ++rank)
      codec_->add(received(rank, longest_), draw(0), sum);
    finish();
    return std::nullopt;
  }
};

// The sum of this rank's shard is encoded again like a gradient. Its encoding error is kept here.
class ShardedReducer final : public FlatReducer {
 public:
  ShardedReducer(const Spec& spec, const Unit& unit)
      : FlatReducer(spec, unit),
        shard_bytes_(shard_bytes(spec, unit)),
        sum_(shard(unit.rank).size()),
        unsent_sum_(spec.memory == Memory::kFeedback ? Memory::kFeedback : Memory::kNone,
                    static_cast<std::int64_t>(sum_.size())) {
    for (int rank = 0; rank < unit.world; ++rank)
      codecs_.push_back(make_codec(spec, unit, shard(rank)));
  }

  std::int64_t bytes_sent() const override { return 2 * (unit_.world - 1) * shard_bytes_; }
  const char* exchange() const override { return "sharded"; }

 private:
  std::vector<Remembered*> memory() override {
    auto all = FlatReducer::memory();
    if (delta()) all.push_back(&sum_);
    all.push_back(unsent_sum_.memory());
    return all;
  }
  Range shard(int rank) const { return shard_of(unit_, rank); }
  const Codec& codec(int rank) const { return *codecs_[static_cast<std::size_t>(rank)]; }
  std::span<float> part(std::span<float> all, const Range& range) const {
    return all.subspan(static_cast<std::size_t>(range.first), range.size());
  }

  std::optional<Round> stage(int stage) override {
    if (codec_->fixed() && stage >= 1) ++stage;  // the lengths are known
    if (codec_->fixed() && stage >= 3) ++stage;
    switch (stage) {
      case 0: {
        const std::int64_t longest = encode_shards();
        if (!codec_->fixed()) return ask_longest(longest);
        longest_ = shard_bytes_;
        return send_shards();
      }
      case 1: return send_shards();
      case 2: {
        encode_sum();
        if (!codec_->fixed()) return ask_longest(static_cast<std::int64_t>(out_.size()));
        return send_sum();
      }
      case 3: return send_sum();
      default: return take_sums();
    }
  }

  // Returns the length of the longest of the consecutive encodings.
  std::int64_t encode_shards() {
    begin_step();
    ends_.clear();
    std::int64_t longest = 0;
    for (int rank = 0; rank < unit_.world; ++rank) {
      const std::size_t begin = out_.size();
      encode(codec(rank), shard(rank).first, part(values(), shard(rank)),
             draw(static_cast<std::uint32_t>(rank)));
      ends_.push_back(out_.size());
      longest = std::max(longest, static_cast<std::int64_t>(out_.size() - begin));
    }
    encoded();
    return longest;
  }

  // Copies encodings into blocks of equal length.
  Round send_shards() {
    const auto block = static_cast<std::size_t>(longest_);
    std::vector<std::byte> blocks(block * ends_.size());
    for (std::size_t rank = 0, begin = 0; rank < ends_.size(); begin = ends_[rank++]) {
      if (ends_[rank] > begin)
        std::memcpy(blocks.data() + rank * block, out_.data() + begin, ends_[rank] - begin);
    }
    out_ = std::move(blocks);
    return swap(Round::How::kAllToAll, longest_);
  }

  void encode_sum() {
    unsent_sum_.begin();
    sum_.change();
    const auto sum = sum_.now();
    if (!delta()) std::fill(sum.begin(), sum.end(), 0.0f);
    const Range mine = shard(unit_.rank);
    for (int rank = 0; rank < unit_.world && mine.size() > 0; ++rank) {
      codec(unit_.rank)
          .add(received(rank, longest_), draw(static_cast<std::uint32_t>(unit_.rank)), sum);
    }
    out_.clear();
    const Draw second = draw(static_cast<std::uint32_t>(unit_.world + unit_.rank));
    if (!delta()) return unsent_sum_.encode(codec(unit_.rank), 0, sum, second, out_);
    // agreed_ has the other ranks' state of the sum.
    const auto believed = part(agreed_.now(), mine);
    std::vector<float> difference(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) difference[i] = sum[i] - believed[i];
    codec(unit_.rank).encode(difference, second, out_, nullptr);
  }

  Round send_sum() {
    if (codec_->fixed()) longest_ = shard_bytes_;
    out_.resize(static_cast<std::size_t>(longest_));
    return swap(Round::How::kAllGather, longest_);
  }

  std::optional<Round> take_sums() {
    const auto sum = sums();
    for (int rank = 0; rank < unit_.world; ++rank) {
      if (shard(rank).size() == 0) continue;
      codec(rank).add(received(rank, longest_),
                      draw(static_cast<std::uint32_t>(unit_.world + rank)), part(sum, shard(rank)));
    }
    finish();
    if (delta()) forget_not_finite(part(values(), shard(unit_.rank)), sum_.now());
    return std::nullopt;
  }

  const std::int64_t shard_bytes_;              // bytes of the longest shard
  std::vector<std::unique_ptr<Codec>> codecs_;  // by shard
  Remembered sum_;                              // of this rank's; memory with delta only
  Unsent unsent_sum_;
  std::vector<std::size_t> ends_;  // end offsets of the encoded shards
};

}  // namespace

std::unique_ptr<Reducer> make_sum(const Spec& spec, const Unit& unit) {
  return std::make_unique<SumReducer>(spec, unit);
}
std::unique_ptr<Reducer> make_gather(const Spec& spec, const Unit& unit) {
  return std::make_unique<GatherReducer>(spec, unit);
}
std::unique_ptr<Reducer> make_sharded(const Spec& spec, const Unit& unit) {
  return std::make_unique<ShardedReducer>(spec, unit);
}

}  // namespace weft::compress::internal
