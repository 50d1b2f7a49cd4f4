#include "weft/engine/internal/in_place.h"

#include <ATen/ATen.h>

#include "weft/comm/allocator.h"
#include "weft/kernels/reduce.h"

namespace weft::parallel::internal {
namespace {

DType reduced_as(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return DType::kF64;
    case at::kHalf: return DType::kF16;
    case at::kBFloat16: return DType::kBF16;
    default: return DType::kF32;
  }
}

}  // namespace

InPlace::InPlace(net::Host& host, const std::vector<Param>& params, const std::vector<Unit>& units, std::chrono::nanoseconds timeout)
    : host_(host), params_(params), units_(units), timeout_(timeout), round_(units.size(), 0), held_(params.size()) {
  const auto share = [&]<class T>(T*& array, std::size_t count) {
    array = reinterpret_cast<T*>(host_.share(count * index(host_.world()) * sizeof(T), timeout_));
  };
  share(tokens_, params.size());
  share(weights_, units.size());
  share(published_, units.size());
  share(reduced_, units.size());
}

void InPlace::put(int param, const at::Tensor& gradient) {
  held_[index(param)] = comm::readable(host_, gradient.is_sparse() ? gradient.to_dense() : gradient);
}

void InPlace::publish(int unit, double weight) {
  for (const int param : units_[index(unit)].params) {
    const at::Tensor& gradient = held_[index(param)];
    tokens(host_.rank())[param] = gradient.defined() ? host_.token(gradient.data_ptr()) : net::Host::kNoToken;
  }
  weights(host_.rank())[unit] = weight;
  published(host_.rank())[unit].store(++round_[index(unit)], std::memory_order_release);
  host_.notify();
}

int InPlace::waits_for(const Stamp* of_rank_0, int unit) const {
  for (int rank = 0; rank < host_.world(); ++rank) {
    if (of_rank_0[index(rank) * units_.size() + index(unit)].load(std::memory_order_acquire) != round_[index(unit)]) return rank;
  }
  return -1;
}

void InPlace::await(const Stamp* of_rank_0, int unit) {
  int rank = -1;
  host_.wait([&] { return (rank = waits_for(of_rank_0, unit)) < 0; }, [&] { return rank; }, "sharded", timeout_);
}

void InPlace::reduce(int unit, at::Tensor& shard) {
  host_.check("sharded");
  await(published(0), unit);
  const Unit& u = units_[index(unit)];
  const auto element = static_cast<std::int64_t>(c10::elementSize(u.type));
  auto* const to = static_cast<std::byte*>(shard.data_ptr());
  std::int64_t filled = 0;
  const auto zero_up_to = [&](std::int64_t end) {
    if (end > filled) shard.narrow(0, filled, end - filled).zero_();
  };
  for (std::size_t place = 0; place < u.params.size(); ++place) {
    const int param = u.params[place];
    const Piece piece = piece_of(u, place, params_[index(param)].tensor.numel(), host_.rank());
    if (piece.end <= piece.begin) continue;
    std::vector<const void*> sources;
    std::vector<double> weights;
    for (int rank = 0; rank < host_.world(); ++rank) {
      const Token token = tokens(rank)[param];
      if (token == net::Host::kNoToken) continue;
      sources.push_back(host_.at(rank, token) + piece.begin * element);
      weights.push_back(this->weights(rank)[unit]);
    }
    if (sources.empty()) continue;
    zero_up_to(piece.at);
    void* sum = to + piece.at * element;
    filled = piece.at + piece.end - piece.begin;
    kernels::reduce(&sum, 1, sources.data(), static_cast<int>(sources.size()),
                    {.dtype = reduced_as(u.type), .count = piece.end - piece.begin, .weights = weights.data()});
  }
  zero_up_to(u.shard);
  reduced(host_.rank())[unit].store(round_[index(unit)], std::memory_order_release);
  host_.notify();
}

void InPlace::release(int unit) {
  await(reduced(0), unit);
  for (const int param : units_[index(unit)].params) held_[index(param)].reset();
}

}  // namespace weft::parallel::internal
