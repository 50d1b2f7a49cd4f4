#include "weft/engine/internal/replica_sums.h"

#include <string>

#include "weft/compress/spec.h"
#include "weft/engine/internal/index.h"
#include "weft/engine/internal/unit_memory.h"

namespace weft::engine::internal {
namespace {

// A unit as the codec sees it: a flat buffer with matrices.
compress::Unit encoded(const Unit& unit, const std::vector<Param>& params, std::uint32_t id) {
  compress::Unit whole{.count = unit.elements, .matrices = {}, .id = id};
  for (std::size_t place = 0; place < unit.params.size(); ++place)
    add_matrix(whole, unit.offsets[place], params[index(unit.params[place])].tensor);
  return whole;
}

}  // namespace

ReplicaSums::ReplicaSums(const ShardedOptions& options, const std::vector<Param>& params,
                         const std::vector<Unit>& units, int rank)
    : narrow_(compress::parse(options.codec).kind == compress::Kind::kF16),
      exchanges_(units.size()) {
  const compress::Spec spec = compress::parse(options.codec);
  const bool codes = spec.kind != compress::Kind::kNone;
  WEFT_REQUIRE(spec.kind != compress::Kind::kAuto,
               "sharded: codec = \"auto\" is for DataParallel; name a codec");
  WEFT_REQUIRE(!codes || options.average != ShardedOptions::Average::kBySamples,
               "sharded: a codec needs the same weight of gradients in every step; average by "
               "ranks, or sum");
  for (std::size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    const auto& replicas = replicas_of(unit, options);
    if (!replicas || !unit.trainable) continue;
    if (!codes || unit.uncoded) {
      exchanges_[i] = std::make_unique<CodecExchange>(*replicas);
      continue;
    }
    const at::ScalarType type = options.reduce.value_or(unit.type);
    WEFT_REQUIRE(type == at::kFloat, std::string("sharded: a codec needs float32 gradients, not ") +
                                         c10::toString(type) + "; set codec = \"none\"");
    const compress::Unit whole = encoded(unit, params, static_cast<std::uint32_t>(i));
    exchanges_[i] = std::make_unique<CodecExchange>(*replicas, spec,
                                                    part_of(whole, rank * unit.shard, unit.shard));
  }
  commit();
}

void ReplicaSums::start(int unit, const at::Tensor& shard) {
  CodecExchange* const exchange = exchanges_[index(unit)].get();
  if (exchange == nullptr) return;
  exchange->start(shard, steps_);
  started_.push_back(exchange);
}

void ReplicaSums::finish() {
  if (started_.empty()) return;
  for (bool more = true; more;) {
    more = false;
    for (CodecExchange* exchange : started_) more = exchange->advance() || more;
  }
  for (CodecExchange* exchange : started_) {
    exchange->finish();
    in_range_ = in_range_ && exchange->is_in_range();
  }
  started_.clear();
  ++steps_;
}

template <class Visit>
void ReplicaSums::each_exchange(const Visit& visit) {
  for (const auto& exchange : exchanges_) {
    if (exchange) visit(*exchange);
  }
}

void ReplicaSums::commit() {
  each_exchange([](CodecExchange& exchange) { exchange.commit(); });
  committed_steps_ = steps_;
}

void ReplicaSums::rollback() {
  each_exchange([](CodecExchange& exchange) { exchange.rollback(); });
  steps_ = committed_steps_;
  in_range_ = true;
}

std::vector<std::span<float>> ReplicaSums::memory() {
  std::vector<std::span<float>> all;
  each_exchange([&](CodecExchange& exchange) {
    for (const auto& part : exchange.state()) all.push_back(part);
  });
  return all;
}

}  // namespace weft::engine::internal
