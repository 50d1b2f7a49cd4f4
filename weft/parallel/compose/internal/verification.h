// Each replica computes the gradients of another replica's batch once more, and compares checksums:
// a processor that computes wrongly is found.
//
//   rank r        begin()       sends its batch to r-1, and computes the gradients of r+1's batch
//                 train         its own batch; checksums of its gradients as they leave
//                 agree()       compares r+1's checksums with its own for r+1's batch
//                 find_wrong()  if they differ: computes both again, and r+2's batch: who is wrong?
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/parallel/compose/internal/composition.h"

namespace weft::parallel::internal {

// By parameter of this rank's stages; 0: no gradient.
using Checksums = std::vector<std::uint32_t>;

// Gradients of one batch: twice by its owner, twice by the rank that checks it, and by a third rank
// if there is one.
struct Computed {
  Checksums owner, owner_again, checker, checker_again;
  Checksums third = {};  // empty: none
};

enum class Wrong { kNobody, kOwner, kChecker, kEither };
// Who has computed wrongly. A rank that disagrees with itself, else the one that disagrees with the
// third. kEither: it cannot be told.
Wrong who_is_wrong(const Computed& computed);

// Index of the first difference; -1: none.
int first_difference(const Checksums& a, const Checksums& b);

class Verifier {
 public:
  // Seeds libtorch's generator as that replica does.
  using Seed = std::function<void(int replica)>;
  // Checksums of the gradients of a batch of the replica `shift` places on, with this rank's
  // weights. Leaves no trace of the batch.
  using Compute =
      std::function<Checksums(const Tensors& inputs, const Tensors& targets, int shift)>;

  // `composition` must outlive it.
  Verifier(Composition& composition, Compute compute)
      : c_(composition), compute_(std::move(compute)) {}

  // Verifies the next step. Throws Error(kBadConfig) if the plan cannot be verified. Collective.
  void begin(const Tensors& inputs, const Tensors& targets, Seed seed);
  // True if no replica disagrees with the one that has checked it, or if the step is not verified.
  // Forgets the wrong gradients of the last step. Collective where it is verified.
  bool agree();
  // Computes again, after the step was skipped, and names the ranks in wrong(). Collective.
  void find_wrong();
  void end() { step_.reset(); }
  const std::vector<ParallelModel::WrongGradient>& wrong() const { return wrong_; }

 private:
  // This rank's batch, and that of the next replica.
  struct Step {
    Tensors inputs, targets, next_inputs, next_targets;
    Seed seed;
    Checksums next;  // of the next replica's gradients, as this rank computes them
    Checksums own;
  };

  Checksums compute(const Tensors& inputs, const Tensors& targets, int shift);
  Checksums own_checksums();
  std::string parameter_at(int place) const;

  Composition& c_;
  const Compute compute_;
  std::optional<Step> step_;
  std::vector<ParallelModel::WrongGradient> wrong_;
};

}  // namespace weft::parallel::internal
