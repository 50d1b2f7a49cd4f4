// Each replica computes the gradients of another replica's batch once more, and compares checksums:
// a processor that computes wrongly is found.
//
//   rank r        begin()    sends its batch to r-1, and computes the gradients of r+1's batch
//                 train      its own batch; checksums of its gradients as they leave
//                 agree()    compares r+1's checksums with its own for r+1's batch
//                 find()     if they differ: computes both again, and r+2's batch, to see who is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weft/engine/block.h"

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

// A step that is verified: this rank's batch, and that of the next replica.
struct Verification {
  using Seed = std::function<void(int replica)>;
  Tensors inputs, targets, next_inputs, next_targets;
  Seed seed;       // seeds libtorch's generator as that replica does
  Checksums next;  // of the next replica's gradients, as this rank computes them
};

}  // namespace weft::parallel::internal
