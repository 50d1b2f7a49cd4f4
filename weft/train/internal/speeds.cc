#include "weft/train/internal/speeds.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::train::internal {

Speeds::Speeds(const Mesh& mesh)
    : world_(mesh.world()),
      balance_(mesh.size("dp") * mesh.size("fsdp") * mesh.size("ep")),
      given_(balance_.weights()) {
  const plan::MeshLayout& layout = mesh.layout();
  for (int rank = 0; rank < layout.world(); ++rank) {
    const int outer =
        layout.coordinate(rank, "dp") * layout.size("fsdp") + layout.coordinate(rank, "fsdp");
    replica_of_.push_back(
        static_cast<std::size_t>(outer * layout.size("ep") + layout.coordinate(rank, "ep")));
  }
}

void Speeds::add(std::int64_t samples, double seconds) {
  samples_ += samples;
  seconds_ += seconds;
}

std::optional<std::vector<double>> Speeds::rebalance() {
  at::Tensor mine = at::empty({2}, at::kDouble), all = at::empty({2 * world_.size()}, at::kDouble);
  mine.data_ptr<double>()[0] = static_cast<double>(std::exchange(samples_, 0));
  mine.data_ptr<double>()[1] = std::exchange(seconds_, 0);
  world_.all_gather(all, mine);
  std::vector<std::int64_t> samples(given_.size());
  std::vector<double> seconds(given_.size());
  for (std::size_t rank = 0; rank < replica_of_.size(); ++rank) {
    samples[replica_of_[rank]] = std::llround(all.const_data_ptr<double>()[2 * rank]);
    seconds[replica_of_[rank]] =
        std::max(seconds[replica_of_[rank]], all.const_data_ptr<double>()[2 * rank + 1]);
  }
  balance_.measure(samples, seconds);
  const auto weights = balance_.weights();
  const double least = 0.05 / static_cast<double>(given_.size());
  bool moved = false;
  for (std::size_t i = 0; i < given_.size(); ++i)
    moved = moved || std::abs(weights[i] - given_[i]) >= least;
  if (!moved) return std::nullopt;
  given_ = weights;
  return weights;
}

}  // namespace weft::train::internal
