// Torus: rings along the rows and columns of a grid. The number of rounds grows with the sides of
// the grid, not with its area. No rank sends more than in one large ring. One half of the array
// goes along the rows first, the other half along the columns first, so the links of both
// directions are busy at once.
//
// Sources: Mikami and others: Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash,
// 2018 (rows, columns, rows); both halves at once: Jain, Sabharwal: Optimal bucket algorithms for
// large MPI collectives on torus interconnects, 2010. The grid is the topology's, or the one
// nearest to a square. The rows and columns of a mesh do not wrap. There the ring goes out over
// every other rank and comes back over the rest, with hops of up to two links. R rows, C columns,
// n = count. If C and RC divide n/2:
//   all_reduce  Each half is reduce-scattered along its first direction as in a ring, all-reduced
//               along the second, and all-gathered along the first. 2(R+C-2) rounds, 2n(RC-1)/(RC)
//               sent.
#include <vector>

#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/near_square.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule::internal {
namespace {

Grid grid_of(const Request& q) {
  return q.topology && q.topology->grid() ? *q.topology->grid() : near_square(q.world);
}

// The ring of one row or column.
struct Line {
  Line(const Grid& grid, int rank, bool along_row) {
    const int row = rank / grid.columns, column = rank % grid.columns;
    const int length = along_row ? grid.columns : grid.rows;
    for (int i = 0; i < length; ++i) {
      const int at = grid.wraps ? i : i < (length + 1) / 2 ? 2 * i : 2 * (length - i) - 1;
      ranks.push_back(along_row ? row * grid.columns + at : at * grid.columns + column);
      if (ranks.back() == rank) place = i;
    }
  }
  int length() const { return static_cast<int>(ranks.size()); }
  int next() const { return ranks[static_cast<std::size_t>(wrap(place + 1, length()))]; }
  int previous() const { return ranks[static_cast<std::size_t>(wrap(place - 1, length()))]; }
  Range chunk(Range whole, int index) const { return part(whole, length(), wrap(index, length())); }

  std::vector<int> ranks;
  int place = 0;
};

void torus_all_reduce(const Line& first, const Line& second, Range half, Writer& w) {
  const int turn = first.length() - 1;
  for (int k = 1; k <= turn; ++k) {
    w.at(k);
    w.send(first.next(), first.chunk(half, first.place - k + 1));
    w.recv_reduce(first.previous(), first.chunk(half, first.place - k));
  }
  const Range whole = first.chunk(half, first.place + 1);  // summed along the first direction
  const Request ring{
      Collective::kAllReduce, Algorithm::kRing, second.place, second.length(), 0, whole.count};
  w.embed(make(ring), {.ranks = second.ranks, .where = whole, .after = turn});
  for (int k = 1; k <= turn; ++k) {
    w.at(turn + 2 * (second.length() - 1) + k);
    w.send(first.next(), first.chunk(half, first.place - k + 2));
    w.recv(first.previous(), first.chunk(half, first.place - k + 1));
  }
}

}  // namespace

Schedule make_torus(const Request& q) {
  const Grid grid = grid_of(q);
  const Line row(grid, q.rank, /*along_row=*/true);
  const Line column(grid, q.rank, /*along_row=*/false);
  const Range all = output(0, q.count);
  Writer w(q);
  w.copy(input(0, q.count), all);
  torus_all_reduce(row, column, part(all, 2, 0), w);
  torus_all_reduce(column, row, part(all, 2, 1), w);
  return std::move(w).done();
}

}  // namespace weft::schedule::internal
