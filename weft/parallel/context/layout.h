// How a sequence lies over the ranks of a group: cut in 2 · ranks chunks, of which rank r has r and 2 · ranks - 1 - r. A causal position
// costs as many products as there are positions before it, so an early chunk and a late one make all ranks' work alike (Grattafiori et
// al., "The Llama 3 Herd of Models", 2024, 3.3.2; the same in Megatron-LM).
//
//   3 ranks:   chunk   0  1  2  3  4  5        rank 0: chunks 0 and 5, rank 1: 1 and 4, rank 2: 2 and 3
//              rank    0  1  2  2  1  0
//
// Nothing is padded: where a length does not divide, the first chunks have one position more; ranks differ by one position at most, and
// chunks of short sequences may be empty.
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
  // A rank's two, in the order in which it has them.
  Chunk low(int rank) const { return chunk(rank); }
  Chunk high(int rank) const { return chunk(2 * ranks - 1 - rank); }
  std::int64_t length(int rank) const { return low(rank).size + high(rank).size; }
  std::int64_t longest() const { return (whole + ranks - 1) / ranks; }

  // A rank's entries along `dim`, which has `whole`: a copy where there are several ranks, else the tensor itself. Gradients go through.
  // Throws Error(kInvalidArgument) for another size.
  at::Tensor part(const at::Tensor& tensor, std::int64_t dim, int rank) const;
  // Where a rank's entries lie in the whole: int64 [length].
  at::Tensor positions(int rank) const;
};

}  // namespace weft::parallel
