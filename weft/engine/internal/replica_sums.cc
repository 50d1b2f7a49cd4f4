#include "weft/engine/internal/replica_sums.h"

namespace weft::parallel::internal {
namespace {

compress::Unit coded(const Unit& unit, std::uint32_t id, const std::vector<Param>& params, int rank) {
  compress::Unit whole{.count = unit.elements, .matrices = {}, .id = id};
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const at::Tensor& like = params[static_cast<std::size_t>(unit.params[place])].tensor;
    if (like.numel() > 0) whole.matrices.push_back(matrix_at(unit.offsets[place], like));
  }
  return part_of(whole, rank * unit.shard, unit.shard);
}

compress::Spec spec_of(const ShardedOptions& options) {
  compress::Spec spec = compress::parse(options.codec);
  if (spec.kind == compress::Kind::kNone) return spec;
  WEFT_REQUIRE(spec.kind != compress::Kind::kAuto, "sharded: codec = \"auto\" is for DataParallel; name a codec");
  WEFT_REQUIRE(options.average != ShardedOptions::Average::kBySamples,
               "sharded: what a codec remembers must keep its measure from step to step: average by ranks, or sum");
  return spec;
}

}  // namespace

ReplicaSums::ReplicaSums(Subject subject) : subject_(subject), exchanges_(subject.units.size()) {
  const compress::Spec spec = spec_of(subject.options);
  for (std::size_t i = 0; i < subject.units.size(); ++i) {
    const Unit& unit = subject.units[i];
    const auto& replicas = replicas_of(unit, subject.options);
    if (!replicas || !unit.trainable) continue;
    if (spec.kind == compress::Kind::kNone || unit.uncoded) {
      exchanges_[i] = std::make_unique<CodecExchange>(*replicas);
      continue;
    }
    const at::ScalarType type = subject.options.reduce.value_or(unit.type);
    WEFT_REQUIRE(type == at::kFloat,
                 std::string("sharded: a codec takes float32 gradients, not ") + c10::toString(type) + "; set codec = \"none\"");
    const compress::Unit whole = coded(unit, static_cast<std::uint32_t>(i), subject.params, subject.rank);
    exchanges_[i] = std::make_unique<CodecExchange>(*replicas, spec, whole);
  }
}

void ReplicaSums::start(int unit, const at::Tensor& shard) {
  CodecExchange* const exchange = exchanges_[static_cast<std::size_t>(unit)].get();
  if (exchange == nullptr) return;
  exchange->start(shard, steps_);
  under_way_.push_back(exchange);
}

void ReplicaSums::finish() {
  if (under_way_.empty()) return;
  for (bool more = true; more;) {
    more = false;
    for (CodecExchange* exchange : under_way_) more = exchange->advance() || more;
  }
  for (CodecExchange* exchange : under_way_) exchange->finish();
  under_way_.clear();
  ++steps_;
}

std::vector<std::span<float>> ReplicaSums::memory() {
  std::vector<std::span<float>> all;
  for (const auto& exchange : exchanges_) {
    if (!exchange) continue;
    for (const auto& part : exchange->state()) all.push_back(part);
  }
  return all;
}

}  // namespace weft::parallel::internal
