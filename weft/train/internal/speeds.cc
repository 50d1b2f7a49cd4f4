#include "weft/train/internal/speeds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/train/internal/measured.h"

namespace weft::train::internal {

Speeds::Speeds(const Mesh& mesh, double smallest_share)
    : world_(mesh.world()),
      balance_(mesh.size("dp") * mesh.size("fsdp") * mesh.size("ep"),
               {.smallest_share = smallest_share}),
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
  const auto all = gather_numbers(
      world_, {static_cast<double>(std::exchange(samples_, 0)), std::exchange(seconds_, 0)});
  std::vector<std::int64_t> samples(given_.size());
  std::vector<double> seconds(given_.size());
  for (std::size_t rank = 0; rank < replica_of_.size(); ++rank) {
    samples[replica_of_[rank]] = std::llround(all[rank][0]);
    seconds[replica_of_[rank]] = std::max(seconds[replica_of_[rank]], all[rank][1]);
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
