#include "weft/elastic/internal/random_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

#include "weft/base/random.h"

namespace weft::elastic::internal {
namespace {

constexpr const char* kName = "generator";
constexpr std::uint32_t kNewRanks = 0x6e657772;  // a stream of random numbers: "newr"

// The slice of this rank in the table of all ranks' states.
checkpoint::Slice row_of(int rank, std::int64_t ranks, const at::Tensor& state) {
  return {kName, {ranks, state.numel()}, {rank, 0}, state.view({1, -1})};
}

}  // namespace

at::Tensor random_now() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return generator.get_state();
}

void set_random(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(state);
}

checkpoint::Slices random_slices(const Group& world) {
  return {row_of(world.rank(), world.size(), random_now())};
}

void load_random(const Group& world, const checkpoint::Reader& reader) {
  const std::int64_t ranks = reader.shapes(kRandomPart).at(kName).at(0);
  if (world.rank() >= ranks) {
    Random numbers(static_cast<std::uint64_t>(world.rank()), kNewRanks,
                   static_cast<std::uint64_t>(reader.step()));
    at::manual_seed(numbers.next_u64());
    return;
  }
  const at::Tensor state = random_now();
  reader.fill(kRandomPart, {row_of(world.rank(), ranks, state)});
  set_random(state);
}

}  // namespace weft::elastic::internal
