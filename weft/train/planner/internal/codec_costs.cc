#include "weft/train/planner/internal/codec_costs.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>

#include "weft/compress/measure.h"
#include "weft/train/internal/measured.h"

namespace weft::train::internal {
namespace {

// Numbers that are encoded: of each parameter at most, and in all.
constexpr std::int64_t kOfParameter = 1 << 19, kInAll = 1 << 21;

// One buffer with the first parameters of the model, large ones cut after some rows.
compress::Unit sample_of(const parallel::BlockModel& model, const Group& world) {
  compress::Unit unit{.count = 0, .matrices = {}, .rank = world.rank(), .world = world.size()};
  for (const parallel::BlockSpec& spec : model.blocks) {
    if (unit.count >= kInAll) break;
    const parallel::Block block = spec.make({});
    for (const at::Tensor& parameter : block.module->parameters()) {
      const std::int64_t all = parameter.numel();
      if (all == 0) continue;
      const std::int64_t columns = parameter.dim() > 1 ? all / parameter.size(0) : 1;
      const std::int64_t rows =
          std::min(all / columns, std::max<std::int64_t>(1, kOfParameter / columns));
      unit.matrices.push_back({unit.count, rows, columns});
      unit.count += rows * columns;
    }
  }
  return unit;
}

}  // namespace

std::vector<std::string> codecs_of_plans() {
  std::vector<std::string> names = {"none"};
  for (const compress::Spec& spec : compress::standard_candidates())
    names.push_back(compress::to_string(spec));
  return names;
}

std::map<std::string, plan::CodecCost> measure_codecs(const parallel::BlockModel& model,
                                                      const Group& world) {
  const compress::Unit sample = sample_of(model, world);
  const auto specs = compress::standard_candidates();
  std::vector<double> mine;
  for (const compress::Spec& spec : specs) {
    const compress::Candidate one = compress::measure(spec, {sample});
    mine.insert(mine.end(),
                {one.code / std::max(1.0, 4.0 * static_cast<double>(sample.count)), one.bytes});
  }
  const std::vector<double> most = largest_numbers(world, mine);
  auto value = most.begin();
  std::map<std::string, plan::CodecCost> costs;
  for (const compress::Spec& spec : specs) {
    costs[compress::to_string(spec)] = {value[0], value[1]};
    value += 2;
  }
  return costs;
}

}  // namespace weft::train::internal
