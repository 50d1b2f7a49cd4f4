// The memory that the workers of a host share: a copy of the weights for each cluster, locks, whose
// turn the exchange is, and which clusters have ended. It has no addresses, so processes may map it
// at different places.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::linear::internal {

class SharedWeights {
 public:
  static constexpr std::size_t kLine = 64, kColumnsOfLock = kLine / sizeof(float);

  SharedWeights(std::byte* memory, std::size_t weights, int clusters)
      : memory_(memory), weights_(weights), clusters_(clusters) {}

  static std::size_t bytes(std::size_t weights, int clusters) {
    const std::size_t copies = 2 * static_cast<std::size_t>(clusters) * lines(weights) * kLine;
    const std::size_t words = lines(weights) + static_cast<std::size_t>(clusters);
    return copies + kLine + words * sizeof(std::uint32_t);
  }

  int clusters() const { return clusters_; }
  // The weights of a cluster, and those after its last exchange.
  std::span<float> weights(int cluster) const { return copy(2 * cluster); }
  std::span<float> snapshot(int cluster) const { return copy(2 * cluster + 1); }
  // The cluster that may exchange.
  std::atomic_ref<std::uint32_t> turn() const { return std::atomic_ref(words()[0]); }
  // 1: the first worker of the cluster has visited its rows of this epoch.
  std::atomic_ref<std::uint32_t> ended(int cluster) const {
    const std::size_t first = kLine / sizeof(std::uint32_t) + lines(weights_);  // behind the locks
    return std::atomic_ref(words()[first + static_cast<std::size_t>(cluster)]);
  }
  // The lock of all weights, and that of the line of a column. 1: taken.
  std::atomic_ref<std::uint32_t> lock() const { return std::atomic_ref(words()[1]); }
  std::atomic_ref<std::uint32_t> lock_of_line(std::size_t line) const {
    return std::atomic_ref(words()[kLine / sizeof(std::uint32_t) + line]);
  }

 private:
  static std::size_t lines(std::size_t weights) {
    return (weights + kColumnsOfLock - 1) / kColumnsOfLock;
  }
  std::span<float> copy(int number) const {
    auto* const floats = reinterpret_cast<float*>(memory_);
    return {floats + static_cast<std::size_t>(number) * lines(weights_) * kColumnsOfLock, weights_};
  }
  std::uint32_t* words() const {
    return reinterpret_cast<std::uint32_t*>(memory_ + 2 * static_cast<std::size_t>(clusters_) *
                                                          lines(weights_) * kLine);
  }

  std::byte* memory_;
  std::size_t weights_;
  int clusters_;
};

}  // namespace weft::linear::internal
