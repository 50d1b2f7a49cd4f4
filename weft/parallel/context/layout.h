// SequenceLayout: the positions of a sequence that each rank of a group has. A sequence is cut into
// 2 · ranks chunks; rank r has chunks r and 2 · ranks - 1 - r.
//
// A causal position costs as many products as there are positions before it. So an early chunk and
// a late one make the work of all ranks alike (Grattafiori et al., "The Llama 3 Herd of Models",
// 2024, 3.3.2; the same in Megatron-LM).
//
//   3 ranks:   chunk   0  1  2  3  4  5      chunks of rank 0: 0 and 5, rank 1: 1 and 4,
//              rank    0  1  2  2  1  0      rank 2: 2 and 3
//
// Nothing is padded. Where a length does not divide, the first chunks have one position more. Ranks
// differ by one position at most. Chunks of short sequences may be empty.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace weft::parallel {

struct SequenceLayout {
  // Positions [begin, begin + size) of the whole.
  struct Chunk {
    std::int64_t begin = 0, size = 0;
  };

  std::int64_t whole = 0;
  int ranks = 1;

  Chunk chunk(int index) const;
  // The two chunks of a rank, in the order in which it has them.
  Chunk low(int rank) const { return chunk(rank); }
  Chunk high(int rank) const { return chunk(2 * ranks - 1 - rank); }
  std::int64_t length(int rank) const { return low(rank).size + high(rank).size; }
  std::int64_t longest() const { return (whole + ranks - 1) / ranks; }

  // A rank's entries of `tensor` along `dim`, which has size `whole`. A copy if there are several
  // ranks, otherwise the tensor itself. Gradients pass through. Throws Error(kInvalidArgument) for
  // another size.
  at::Tensor part(const at::Tensor& tensor, std::int64_t dim, int rank) const;
  // Positions of a rank's entries in the whole: int64 [length].
  at::Tensor positions(int rank) const;
};

}  // namespace weft::parallel
