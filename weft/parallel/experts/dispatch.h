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
// Ranks send as many rows as their tokens have chosen, so all-to-alls are uneven (MegaBlocks, Gale
// et al. 2022, drops no token either); with a capacity fewer rows go, and none is padding. A rank
// may have no token, and an expert no row: the calls are the same.
//
// Rank r's n_r tokens of `width` numbers make m_r rows: k · n_r, less what a capacity drops. A step
// of one layer hands over, per rank:
//
//   forward    all-gather of 2 experts + 1 counts of 8 bytes; dispatch m_r · width numbers; combine
//              as many as its experts were sent
//   backward   the same two, the other way round
//
// so all ranks together 4 width · (sum of m_r) numbers, of which a share of (ep - 1) / ep leaves
// its rank where experts are used alike. A group of one exchanges nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "weft/parallel/experts/context.h"
#include "weft/parallel/experts/router.h"

namespace weft::parallel {

// Uneven all-to-all of rows with its counterpart as gradient: `send[q]` rows of x [rows, …] go to
// rank q, in rank order, and `receive[q]` come from it, in rank order too. Collective, backward
// too; gradients of gradients go through. In a group of one x itself. Throws
// Error(kInvalidArgument) where `send` does not sum to the rows, and what Group's operations throw.
at::Tensor exchange_rows(const at::Tensor& x, const std::vector<std::int64_t>& send,
                         const std::vector<std::int64_t>& receive, const ExpertParallel& ep);

// The way of one batch's tokens.
class Dispatch {
 public:
  // Collective over ep (see above): ranks tell each other their counts. Throws
  // Error(kInvalidArgument) where the experts of `routing` do not divide by the ranks.
  Dispatch(const Routing& routing, const ExpertParallel& ep);

  // x [n, width] -> the rows for this rank's experts, expert by expert: [sum of rows_of_expert(),
  // width]. Collective, backward too.
  at::Tensor send(const at::Tensor& x) const;
  // What the experts made of them -> [n, width]: each token's results times `weights` [n, top_k]
  // and summed; zeros where all of a token's choices were dropped. Collective, backward too.
  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights) const;

  const std::vector<std::int64_t>& rows_of_expert() const { return rows_of_expert_; }
  // Of all ranks along ep.
  const ExpertLoad& load() const { return load_; }

 private:
  void order_choices(const Routing& routing);
  void order_arrivals(const at::Tensor& counts);

  ExpertParallel ep_;
  std::int64_t tokens_ = 0, top_k_ = 1, experts_ = 1;
  at::Tensor choices_;  // int64: of [n · top_k], those that are kept, by expert
  at::Tensor arrivals_,
      // what arrives in the order of experts, and back; undefined where it comes in that order
      departures_;
  std::vector<std::int64_t> send_, receive_;  // rows to and from each rank
  std::vector<std::int64_t> rows_of_expert_;
  ExpertLoad load_;
};

}  // namespace weft::parallel
