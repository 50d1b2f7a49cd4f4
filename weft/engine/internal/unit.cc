#include "weft/engine/internal/unit.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/engine/internal/index.h"
#include "weft/engine/parameter_cuts.h"

namespace weft::engine::internal {
namespace {

constexpr std::int64_t kAlignment = 16;

std::int64_t aligned(std::int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

at::ScalarType computed_in(const at::Tensor& tensor, const UnitOptions& options) {
  return tensor.scalar_type() == at::kFloat && options.compute ? *options.compute
                                                               : tensor.scalar_type();
}

bool fits(const Unit& unit, const Param& param, const UnitOptions& options) {
  const bool same = unit.blocks == param.blocks && unit.trainable == param.tensor.requires_grad() &&
                    unit.type == computed_in(param.tensor, options) && unit.apart == param.apart &&
                    unit.uncoded == param.uncoded && unit.arrays == param.arrays;
  if (!same || options.most_bytes == 0) return same;
  return unit.bytes() +
             param.tensor.numel() * static_cast<std::int64_t>(c10::elementSize(unit.type)) <=
         options.most_bytes;
}

Unit unit_for(const Param& param, const UnitOptions& options) {
  Unit unit;
  unit.blocks = param.blocks;
  unit.trainable = param.tensor.requires_grad();
  unit.apart = param.apart;
  unit.uncoded = param.uncoded;
  unit.arrays = param.arrays;
  unit.type = computed_in(param.tensor, options);
  // Frozen parameters have no master of another type.
  unit.master_type = param.tensor.scalar_type() == at::kDouble ? at::kDouble
                     : unit.trainable                          ? at::kFloat
                                                               : unit.type;
  return unit;
}

}  // namespace

std::vector<Unit> make_units(const std::vector<Param>& params, const UnitOptions& options) {
  std::vector<Unit> units;
  for (std::size_t i = 0; i < params.size(); ++i) {
    // If the size is limited, units are runs of neighboring parameters, so that they are complete
    // early in backward.
    auto from = units.begin();
    if (options.most_bytes > 0 && !units.empty())
      from = units.end() - std::min<std::ptrdiff_t>(4, units.end() - units.begin());
    auto found = std::find_if(from, units.end(),
                              [&](const Unit& unit) { return fits(unit, params[i], options); });
    if (found == units.end()) found = units.insert(units.end(), unit_for(params[i], options));
    found->params.push_back(static_cast<int>(i));
    found->offsets.push_back(found->elements);
    found->elements += aligned(params[i].tensor.numel());
  }
  for (Unit& unit : units) {
    unit.shard = (unit.elements + options.ranks - 1) / options.ranks;
    unit.elements = unit.shard * options.ranks;
  }
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.blocks[0] < b.blocks[0]; });
  return units;
}

bool Unit::has_copy() const {
  return master.storage().unsafeGetStorageImpl() != flat.storage().unsafeGetStorageImpl();
}

std::vector<Piece> pieces_of(const Unit& unit, const std::vector<Param>& params, int rank) {
  std::vector<Piece> pieces;
  const std::int64_t first = rank * unit.shard;
  for (std::size_t place = 0; place < unit.params.size(); ++place) {
    const std::int64_t offset = unit.offsets[place];
    const std::int64_t count = params[index(unit.params[place])].tensor.numel();
    const std::int64_t begin = std::max(offset, first),
                       end = std::min(offset + count, first + unit.shard);
    if (end > begin)
      pieces.push_back({unit.params[place], begin - offset, end - offset, begin - first});
  }
  return pieces;
}

void put_gradient(at::Tensor& part, int param, const at::Tensor& gradient, double weight,
                  GradientCheck* check) {
  const bool counts = gradient.defined() && (check == nullptr || check->look(param, gradient));
  if (!counts) {
    part.zero_();
    return;
  }
  const at::Tensor dense = gradient.to_dense().reshape(-1);
  if (weight == 1) {
    part.copy_(dense);
  } else if (dense.scalar_type() == part.scalar_type()) {
    at::mul_out(part, dense, at::scalar_tensor(weight, at::kDouble));  // one pass
  } else {
    part.copy_(dense).mul_(weight);
  }
}

void put_below(Unit& unit, const at::Tensor& buffer) {
  c10::StorageImpl* const storage = unit.flat.storage().unsafeGetStorageImpl();
  void* const data = buffer.defined() ? buffer.data_ptr() : nullptr;
  storage->set_data_ptr_noswap(c10::DataPtr(data, c10::Device(c10::kCPU)));
  storage->set_nbytes(buffer.defined() ? buffer.nbytes() : 0);
  for (const at::Tensor& param : unit.gathered)
    buffer.defined() ? engine::admit(param) : engine::refuse(param);
}

}  // namespace weft::engine::internal
