#include "weft/engine/codec/codec_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "weft/base/log.h"

namespace weft::engine {
namespace {

using compress::Round;

at::ScalarType scalar_type(DType type) {
  switch (type) {
    case DType::kF32: return at::kFloat;
    case DType::kF16: return at::kHalf;
    case DType::kBF16: return at::kBFloat16;
    case DType::kI64: return at::kLong;
    case DType::kU8: return at::kByte;
    default: throw Error(Errc::kInternal, std::string("a codec's round of ") + to_string(type));
  }
}

Group::Work run(const Group& group, const Round& round) {
  const at::ScalarType type = scalar_type(round.dtype);
  const bool in_place = round.how == Round::How::kSum || round.how == Round::How::kMax;
  at::Tensor data = at::from_blob(round.data, {round.count * (in_place ? 1 : group.size())}, type);
  if (in_place)
    return group.all_reduce_async(data,
                                  round.how == Round::How::kSum ? ReduceOp::kSum : ReduceOp::kMax);
  const bool gather = round.how == Round::How::kAllGather;
  // from_blob() does not support read-only memory.
  at::Tensor send = at::from_blob(const_cast<void*>(round.send),
                                  {round.count * (gather ? 1 : group.size())}, type);
  if (gather) return group.all_gather_async(data, send);
  std::vector<std::int64_t> even;
  return group.backend().alltoall_base(data, send, even, even, c10d::AllToAllOptions());
}

struct Range {
  std::int64_t first, count;
};
// The part of a buffer that rank number `carrier` of each host exchanges with other hosts.
Range share(std::int64_t count, std::int64_t carrier, std::int64_t carriers) {
  const std::int64_t length = (count + carriers - 1) / carriers,
                     first = std::min(count, carrier * length);
  return {first, std::min(count - first, length)};
}

}  // namespace

void add_matrix(compress::Unit& unit, std::int64_t first, const at::Tensor& like) {
  if (like.numel() == 0) return;
  const std::int64_t rows = like.dim() >= 2 ? like.size(0) : like.numel();
  unit.matrices.push_back({first, rows, like.numel() / rows});
}

compress::Unit part_of(const compress::Unit& whole, std::int64_t first, std::int64_t count) {
  compress::Unit part{.count = count, .matrices = {}, .id = whole.id, .momentum = whole.momentum};
  const std::int64_t range_end = first + count;
  for (const auto& matrix : whole.matrices) {
    const std::int64_t begin =
        std::max<std::int64_t>(0, (first - matrix.first + matrix.columns - 1) / matrix.columns);
    const std::int64_t end = std::min(matrix.rows, (range_end - matrix.first) / matrix.columns);
    if (range_end <= matrix.first || end <= begin) continue;
    part.matrices.push_back(
        {matrix.first + begin * matrix.columns - first, end - begin, matrix.columns});
  }
  return part;
}

compress::Unit CodecExchange::unit_for(const Group& group, const compress::Unit& whole) {
  const comm::HostSplit* const split = group.split();
  if (split != nullptr && !split->across) return {.count = 0, .matrices = {}, .id = whole.id};
  const Group& across = split != nullptr ? *split->across : group;
  const Range mine = split != nullptr ? share(whole.count, split->local.rank(), split->carriers)
                                      : Range{0, whole.count};
  compress::Unit unit = part_of(whole, mine.first, mine.count);
  unit.rank = across.rank();
  unit.world = across.size();
  return unit;
}

CodecExchange::CodecExchange(Group group) : group_(std::move(group)) {}

CodecExchange::CodecExchange(Group group, const compress::Spec& spec, const compress::Unit& whole)
    : group_(std::move(group)), across_(group_), has_codec_(true) {
  if (const comm::HostSplit* const split = group_.split()) across_ = split->across;
  if (!across_) return;
  const compress::Unit unit = unit_for(group_, whole);
  reducer_ = compress::make_reducer(spec, unit);
  plain_bytes_ = compress::make_reducer({}, unit)->bytes_sent();
  const std::string exchange = reducer_->exchange();
  several_rounds_ = exchange == "sharded" || exchange == "low rank";
}

CodecExchange::~CodecExchange() {
  try {
    await();
  } catch (const std::exception& error) {
    log_debug("a sum of gradients has not arrived", {{"why", error.what()}});
  }
}

void CodecExchange::start(const at::Tensor& flat, std::int64_t step) {
  at::Tensor mine = flat_ = flat;
  if (!has_codec_) {
    work_ = group_.all_reduce_async(mine, ReduceOp::kSum);
    return;
  }
  if (const comm::HostSplit* const split = group_.split()) {
    parts_.clear();
    for (int carrier = 0; carrier < split->carriers; ++carrier) {
      const Range range = share(flat.numel(), carrier, split->carriers);
      parts_.push_back(flat.narrow(0, range.first, range.count));
      split->local.reduce(parts_.back(), carrier);
    }
    if (across_) mine = parts_[static_cast<std::size_t>(split->local.rank())];
  }
  if (!reducer_) return;
  reducer_->begin(mine.data_ptr<float>(), step);
  launch(reducer_->next());
}

void CodecExchange::await() {
  if (work_) work_->wait();
}

bool CodecExchange::advance() {
  if (!work_) return false;
  await();
  launch(reducer_ ? reducer_->next() : std::nullopt);
  return static_cast<bool>(work_);
}

void CodecExchange::finish() {
  flat_.reset();
  for (std::size_t carrier = 0; carrier < parts_.size(); ++carrier) {
    group_.split()->local.broadcast(parts_[carrier], static_cast<int>(carrier));
  }
}

std::vector<std::span<float>> CodecExchange::state() {
  return reducer_ ? reducer_->state() : std::vector<std::span<float>>{};
}

void CodecExchange::commit() {
  if (reducer_) reducer_->commit();
}

void CodecExchange::rollback() {
  if (reducer_) reducer_->rollback();
}

bool CodecExchange::is_in_range() const { return !reducer_ || reducer_->is_in_range(); }

std::pair<std::int64_t, std::int64_t> CodecExchange::bytes_sent() const {
  return {reducer_ ? reducer_->bytes_sent() : 0, plain_bytes_};
}

void CodecExchange::launch(const std::optional<Round>& round) {
  work_ = round ? run(*across_, *round) : Group::Work{};
}

}  // namespace weft::engine
