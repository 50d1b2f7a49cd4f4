// For tests: runs every operation of a group, small and large, on values that every rank can
// compute. Throws if a result is wrong.
#pragma once

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "weft/comm/group.h"

namespace weft::comm::internal {

inline at::Tensor of_rank(int rank, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  return (at::arange(c10::multiply_integers(shape), at::TensorOptions(at::kLong)).remainder(11) +
          rank + 1)
      .to(type)
      .view(shape);
}

inline at::Tensor sum_over(int world, at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  at::Tensor sum = at::zeros(shape, type);
  for (int rank = 0; rank < world; ++rank) sum += of_rank(rank, shape, type);
  return sum;
}

inline void expect(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + " is wrong");
}

// Input and output share memory, wholly or in part: the result is that of a copy of the input.
inline void exercise_overlaps(const Group& group, int64_t n) {
  const int rank = group.rank(), world = group.size();
  const int64_t all = world * n;
  for (const int64_t begin : {int64_t{0}, int64_t{1}, n, all - 1, all}) {
    at::Tensor memory = of_rank(rank, {2 * all}), output = memory.narrow(0, begin, all);
    group.all_to_all(output, memory.narrow(0, 0, all));
    for (int peer = 0; peer < world; ++peer)
      expect(
          at::equal(output.narrow(0, peer * n, n), of_rank(peer, {2 * all}).narrow(0, rank * n, n)),
          "all_to_all onto its input");
    memory = of_rank(rank, {2 * all}), output = memory.narrow(0, begin, n);
    group.reduce_scatter(output, memory.narrow(0, 0, all));
    expect(at::equal(output, sum_over(world, {2 * all}).narrow(0, rank * n, n)),
           "reduce_scatter onto its input");
    memory = of_rank(rank, {2 * all}), output = memory.narrow(0, 0, all);
    group.all_gather(output, memory.narrow(0, begin, n));
    for (int peer = 0; peer < world; ++peer)
      expect(at::equal(output.narrow(0, peer * n, n), of_rank(peer, {2 * all}).narrow(0, begin, n)),
             "all_gather of a part of its output");
  }
}

// Three calls of one preparation: run() twice, then start() and wait().
inline void exercise_prepared(const Group& group, at::Tensor tensor) {
  PreparedAllReduce sum = group.prepare_all_reduce(tensor);
  for (int call = 0; call < 3; ++call) {
    tensor.copy_(of_rank(group.rank() + call, tensor.sizes()));
    if (call < 2) {
      sum.run();
    } else {
      sum.start();
      sum.wait();
    }
    const at::Tensor expected = sum_over(group.size(), tensor.sizes()) + group.size() * call;
    expect(at::equal(at::real(tensor).to(at::kFloat), expected), "a prepared all_reduce");
    expect(sum.is_done(), "is_done() after the end");
  }
}

// Runs every operation of Group, small and large, on values that every rank can compute.
inline void exercise(const Group& group) {
  const int rank = group.rank(), world = group.size();
  for (int64_t n : {3, 40'000}) {
    at::Tensor t = of_rank(rank, {n, 2});
    group.all_reduce(t);
    expect(at::equal(t, sum_over(world, {n, 2})), "all_reduce");
    t = of_rank(rank, {n, 2}).t();  // not contiguous
    group.all_reduce(t, ReduceOp::kMax);
    expect(at::equal(t, of_rank(world - 1, {n, 2}).t()) || n > 3,
           "all_reduce of a transposed tensor");
    t = of_rank(rank, {n}, at::kBFloat16);
    group.all_reduce(t, ReduceOp::kAvg);
    expect(at::allclose(t.to(at::kFloat), sum_over(world, {n}) / world, 1e-2),
           "all_reduce in bfloat16");
    t = of_rank(rank, {n}, at::kComplexFloat);
    group.all_reduce(t);
    expect(at::equal(at::real(t), sum_over(world, {n})), "all_reduce of complex numbers");
    exercise_prepared(group, at::empty({n, 2}));

    auto first = of_rank(rank, {n}), second = of_rank(rank, {n}, at::kLong);
    auto one = group.all_reduce_async(first);
    auto two = group.all_reduce_async(second);
    two->wait();
    one->wait();
    expect(at::equal(first, sum_over(world, {n})) &&
               at::equal(second, sum_over(world, {n}, at::kLong)),
           "all_reduce_async");
    expect(at::equal(one->getFuture()->value().toTensorVector()[0], first), "the future's value");

    t = of_rank(rank, {n});
    group.broadcast(t, world - 1);
    expect(at::equal(t, of_rank(world - 1, {n})), "broadcast");
    at::Tensor all = at::empty({world * n, 2});
    group.all_gather(all, of_rank(rank, {n, 2}));
    for (int peer = 0; peer < world; ++peer)
      expect(at::equal(all.narrow(0, peer * n, n), of_rank(peer, {n, 2})), "all_gather");
    at::Tensor mine = at::empty({n});
    group.reduce_scatter(mine, of_rank(rank, {world * n}));
    expect(at::equal(mine, sum_over(world, {world * n}).narrow(0, rank * n, n)), "reduce_scatter");
    at::Tensor blocks = of_rank(rank, {world * n}), own = blocks.narrow(0, rank * n, n);
    group.reduce_scatter(own, blocks);
    expect(at::equal(own, mine), "reduce_scatter onto the rank's own block");
    group.all_gather(blocks, own);
    expect(at::equal(blocks, sum_over(world, {world * n})), "all_gather from the rank's own block");
    at::Tensor swapped = at::empty({world * n});
    group.all_to_all(swapped, of_rank(rank, {world * n}));
    for (int peer = 0; peer < world; ++peer) {
      expect(at::equal(swapped.narrow(0, peer * n, n),
                       of_rank(peer, {world * n}).narrow(0, rank * n, n)),
             "all_to_all");
    }
    t = of_rank(rank, {n});
    group.reduce(t, 0, ReduceOp::kSum);
    expect(at::equal(t, rank == 0 ? sum_over(world, {n}) : of_rank(rank, {n})), "reduce");
    const auto gathered = group.gather(of_rank(rank, {n}), 0);
    expect(rank != 0 || static_cast<int>(gathered.size()) == world,
           "the number of gathered tensors");
    for (std::size_t peer = 0; peer < gathered.size(); ++peer)
      expect(at::equal(gathered[peer], of_rank(static_cast<int>(peer), {n})), "gather");
    t = at::empty({n});
    group.scatter(t, gathered, 0);
    expect(at::equal(t, of_rank(rank, {n})), "scatter");
    const int right = (rank + 1) % world, left = (rank + world - 1) % world;
    at::Tensor from = at::empty({n});
    std::thread sender([&] { group.send(of_rank(rank, {n}), right, 7); });
    group.recv(from, left, 7);
    sender.join();
    expect(at::equal(from, of_rank(left, {n})), "send and recv");
    exercise_overlaps(group, n);
  }
  group.barrier();
}

}  // namespace weft::comm::internal
