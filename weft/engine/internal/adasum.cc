#include "weft/engine/internal/adasum.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace weft::engine::internal {
namespace {

constexpr int kTag = 0x6164;

struct Part {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};

// The lower rank of a pair sends first.
void exchange(const Group& group, int peer, const at::Tensor& mine, at::Tensor& theirs) {
  const bool first = group.rank() < peer;
  for (const bool sends : {first, !first}) {
    if (sends && mine.numel() > 0) group.send(mine, peer, kTag);
    if (!sends && theirs.numel() > 0) group.recv(theirs, peer, kTag);
  }
}

// Calls visit(layer, offset in the part, count) for the layers in a part.
template <class Visit>
void each_layer(const std::vector<std::int64_t>& bounds, const Part& part, const Visit& visit) {
  for (std::size_t layer = 0; layer + 1 < bounds.size(); ++layer) {
    const std::int64_t begin = std::max(bounds[layer], part.begin),
                       end = std::min(bounds[layer + 1], part.end);
    if (end > begin) visit(layer, begin - part.begin, end - begin);
  }
}

// By layer: a·b, a·a, b·b of a part.
template <class Number>
at::Tensor products_of(const Number* a, const Number* b, const std::vector<std::int64_t>& bounds,
                       const Part& part) {
  at::Tensor products = at::zeros({static_cast<std::int64_t>(bounds.size() - 1), 3}, at::kDouble);
  auto* const all = products.data_ptr<double>();
  each_layer(bounds, part, [&](std::size_t layer, std::int64_t begin, std::int64_t count) {
    double ab = 0, aa = 0, bb = 0;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      ab += x * y;
      aa += x * x;
      bb += y * y;
    }
    double* const own = all + 3 * layer;
    own[0] = ab;
    own[1] = aa;
    own[2] = bb;
  });
  return products;
}

// Writes the combination of a part to `mine`, which may be a or b.
template <class Number>
void combine(const Number* a, const Number* b, const at::Tensor& products,
             const std::vector<std::int64_t>& bounds, const Part& part, Number* mine) {
  const auto* const all = products.const_data_ptr<double>();
  each_layer(bounds, part, [&](std::size_t layer, std::int64_t begin, std::int64_t count) {
    const double *const own = all + 3 * layer, ab = own[0];
    const auto of_a = static_cast<Number>(own[1] > 0 ? 1 - ab / (2 * own[1]) : 1),
               of_b = static_cast<Number>(own[2] > 0 ? 1 - ab / (2 * own[2]) : 1);
    for (std::int64_t i = begin; i < begin + count; ++i) mine[i] = of_a * a[i] + of_b * b[i];
  });
}

// Sums over the ranks of this rank's block of `ranks` ranks, a power of two.
void add_over_block(const Group& group, at::Tensor& products, int ranks) {
  at::Tensor other = at::empty_like(products);
  for (int distance = 1; distance < ranks; distance *= 2) {
    exchange(group, group.rank() ^ distance, products, other);
    products.add_(other);
  }
}

template <class Number>
void run(const Group& group, at::Tensor& flat, const std::vector<std::int64_t>& bounds) {
  auto* const values = flat.data_ptr<Number>();
  const auto view = [&](const Part& part) { return flat.narrow(0, part.begin, part.count()); };
  Part mine{0, flat.numel()};
  std::vector<Part> left;  // the other halves, which the peers of the rounds have
  for (int distance = 1; distance < group.size(); distance *= 2) {
    const int peer = group.rank() ^ distance;
    const bool lower = group.rank() < peer;
    const std::int64_t middle = mine.begin + mine.count() / 2;
    const Part low{mine.begin, middle}, high{middle, mine.end};
    mine = lower ? low : high;
    left.push_back(lower ? high : low);
    at::Tensor theirs = at::empty({mine.count()}, flat.options());
    exchange(group, peer, view(left.back()), theirs);
    const Number *const own = values + mine.begin, *const other = theirs.const_data_ptr<Number>(),
                        *const a = lower ? own : other, *const b = lower ? other : own;
    at::Tensor products = products_of(a, b, bounds, mine);
    add_over_block(group, products, 2 * distance);
    combine(a, b, products, bounds, mine, values + mine.begin);
  }
  for (int distance = group.size() / 2; distance > 0; distance /= 2) {
    at::Tensor other = view(left.back());
    exchange(group, group.rank() ^ distance, view(mine), other);
    mine = {std::min(mine.begin, left.back().begin), std::max(mine.end, left.back().end)};
    left.pop_back();
  }
}

}  // namespace

void adasum(const Group& group, at::Tensor& flat, const std::vector<std::int64_t>& bounds) {
  if (flat.scalar_type() == at::kDouble) {
    run<double>(group, flat, bounds);
  } else {
    run<float>(group, flat, bounds);
  }
}

}  // namespace weft::engine::internal
