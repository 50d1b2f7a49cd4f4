// How tokens reach the ranks that have their experts, and come back.
//
//   rank 0  x ─ copies, by expert ─┐                 ┌─ by expert ─ experts 0, 1 ─┐
//                                  ├── all-to-all ───┤                            ├─ …
//   rank 1  x ─ copies, by expert ─┘   (dispatch)    └─ by expert ─ experts 2, 3 ─┘
//
//        ─┐                 ┌─ · weight, summed by token ─ y   rank 0
//     …   ├── all-to-all ───┤
//        ─┘   (combine)     └─ · weight, summed by token ─ y   rank 1
//
// Ranks send one row per choice of a token, so all-to-alls are uneven, and no token is dropped (as
// in MegaBlocks, Gale et al. 2022). With a capacity, fewer rows are sent. There are no padding
// rows. Ranks without tokens and experts without rows make the same calls.
//
// The n_r tokens of rank r, of `width` numbers each, make m_r rows: k · n_r minus dropped ones. Per
// rank, a step of one layer exchanges:
//
//   forward    an all-gather of 2 experts + 1 counts of 8 bytes; dispatch sends m_r · width
//              numbers; combine sends as many numbers as the rank's experts received
//   backward   the same two all-to-alls in the other direction
//
// All ranks together exchange 4 width · (sum of m_r) numbers. If experts are used evenly, a share
// of (ep - 1) / ep of them leaves its rank. A group of one exchanges nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "weft/parallel/experts/context.h"
#include "weft/parallel/experts/router.h"

namespace weft::parallel {

// Uneven all-to-all of rows. Its gradient is the reverse all-to-all. `send[q]` rows of x [rows, …]
// go to rank q, in rank order, and `receive[q]` rows come from it, in rank order. Collective, also
// in backward. Gradients of gradients are supported. Returns x itself in a group of one. Throws
// Error(kInvalidArgument) if `send` does not sum to the number of rows, and as Group's operations
// do.
at::Tensor exchange_rows(const at::Tensor& x, const std::vector<std::int64_t>& send,
                         const std::vector<std::int64_t>& receive, const ExpertParallel& ep);

// The exchange of one batch's tokens.
class Dispatch {
 public:
  // Collective over ep (see above): ranks exchange their counts. Throws Error(kInvalidArgument) if
  // the experts of `routing` do not divide by the ranks.
  Dispatch(const Routing& routing, const ExpertParallel& ep);

  // x [n, width] -> the rows for this rank's experts, ordered by expert: [sum of rows_of_expert(),
  // width]. Collective, also in backward.
  at::Tensor send(const at::Tensor& x) const;
  // The experts' results -> [n, width]: the results of each token times `weights` [n, top_k],
  // summed. Zeros if all choices of a token were dropped. Collective, also in backward.
  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights) const;

  const std::vector<std::int64_t>& rows_of_expert() const { return rows_of_expert_; }
  // Sum over all ranks along ep.
  const ExpertLoad& load() const { return load_; }

 private:
  void order_choices(const Routing& routing);
  void order_arrivals(const at::Tensor& counts);

  ExpertParallel ep_;
  std::int64_t tokens_ = 0, top_k_ = 1, experts_ = 1;
  at::Tensor choices_;  // int64: indices into [n · top_k] of the kept choices, ordered by expert
  at::Tensor arrivals_,
      // permutation of received rows to the order of experts, and its inverse; undefined if they
      // arrive in that order
      departures_;
  std::vector<std::int64_t> send_, receive_;  // rows to and from each rank
  std::vector<std::int64_t> rows_of_expert_;
  ExpertLoad load_;
};

}  // namespace weft::parallel
