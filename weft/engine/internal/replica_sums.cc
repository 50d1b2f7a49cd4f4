#include "weft/engine/internal/replica_sums.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

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
  if (spec.kind == compress::Kind::kNone) return;
  for (std::size_t i = 0; i < subject.units.size(); ++i) {
    const Unit& unit = subject.units[i];
    const auto& replicas = replicas_of(unit, subject.options);
    if (!replicas || !unit.trainable || unit.uncoded) continue;
    const at::ScalarType type = subject.options.reduce.value_or(unit.type);
    WEFT_REQUIRE(type == at::kFloat,
                 std::string("sharded: a codec takes float32 gradients, not ") + c10::toString(type) + "; set codec = \"none\"");
    const compress::Unit whole = coded(unit, static_cast<std::uint32_t>(i), subject.params, subject.rank);
    exchanges_[i] = std::make_unique<CodecExchange>(*replicas, spec, whole);
  }
}

ReplicaSums::~ReplicaSums() {
  for (CodecExchange* exchange : coding_) {
    try {
      exchange->await();
    } catch (const std::exception&) {  // it has ended, which is all that counts here
    }
  }
}

void ReplicaSums::start(int unit, at::Tensor shard) {
  const auto i = static_cast<std::size_t>(unit);
  const auto& replicas = replicas_of(subject_.units[i], subject_.options);
  if (!replicas) return;
  if (exchanges_[i]) {
    exchanges_[i]->start(shard, steps_);
    coding_.push_back(exchanges_[i].get());
  } else {
    works_.push_back(replicas->all_reduce_async(shard));
  }
}

void ReplicaSums::finish() {
  if (works_.empty() && coding_.empty()) return;
  for (const auto& work : works_) work->wait();
  for (bool more = true; more;) {
    more = false;
    for (CodecExchange* exchange : coding_) more = exchange->advance() || more;
  }
  for (CodecExchange* exchange : coding_) exchange->finish();
  works_.clear();
  coding_.clear();
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
