#include "weft/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "weft/base/error.h"
#include "weft/schedule/internal/algorithms.h"
#include "weft/schedule/internal/writer.h"

namespace weft::schedule {
namespace {

using enum Collective;

constexpr std::array kCollectives = {kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce,
                                     kGather,    kScatter,       kAllToAll,  kBarrier};
constexpr std::array kAlgorithms = {Algorithm::kDirect,
                                    Algorithm::kRing,
                                    Algorithm::kRecursiveDoubling,
                                    Algorithm::kHalvingDoubling,
                                    Algorithm::kDoubleBinaryTree,
                                    Algorithm::kSharded,
                                    Algorithm::kBinomial,
                                    Algorithm::kKnomial,
                                    Algorithm::kChain,
                                    Algorithm::kTorus,
                                    Algorithm::kHierarchical};
constexpr const char* kCollectiveNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "broadcast",  "reduce",         "gather",
                                            "scatter",    "all_to_all",     "barrier"};

constexpr unsigned set_of(std::initializer_list<Collective> collectives) {
  unsigned set = 0;
  for (const Collective c : collectives) set |= 1u << static_cast<int>(c);
  return set;
}

struct Entry {
  const char* name;
  unsigned collectives;
  Schedule (*make)(const Request&);
  Cost (*cost)(const Request&);
};

// All algorithms, in the order of enum Algorithm.
constexpr Entry kTable[] = {
    {"direct", (1u << kCollectives.size()) - 1, internal::make_direct, internal::cost_of_direct},
    {"ring", set_of({kAllReduce, kReduceScatter, kAllGather, kAllToAll}), internal::make_ring,
     internal::cost_of_ring},
    {"recursive_doubling", set_of({kAllReduce, kAllGather, kBarrier}),
     internal::make_recursive_doubling, internal::cost_of_recursive_doubling},
    {"halving_doubling", set_of({kAllReduce, kReduceScatter, kBroadcast}),
     internal::make_halving_doubling, internal::cost_of_halving_doubling},
    {"double_binary_tree", set_of({kAllReduce, kBroadcast, kReduce}),
     internal::make_double_binary_tree, internal::cost_of_double_binary_tree},
    {"sharded",
     set_of({kAllReduce, kReduceScatter, kAllGather, kBroadcast, kGather, kScatter, kAllToAll}),
     internal::make_sharded, internal::cost_of_sharded},
    {"binomial", set_of({kBroadcast, kReduce, kGather, kScatter, kBarrier}),
     internal::make_binomial, internal::cost_of_binomial},
    {"knomial", set_of({kBroadcast, kReduce, kGather, kScatter, kBarrier}), internal::make_knomial,
     internal::cost_of_knomial},
    {"chain", set_of({kBroadcast, kReduce}), internal::make_chain, internal::cost_of_chain},
    {"torus", set_of({kAllReduce}), internal::make_torus, internal::counted_cost},
    {"hierarchical", set_of({kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce}),
     internal::make_hierarchical, internal::counted_cost},
};
static_assert(std::size(kTable) == kAlgorithms.size());

const Entry& entry(Algorithm algorithm) { return kTable[static_cast<int>(algorithm)]; }

void check(const Request& q) {
  WEFT_REQUIRE(supports(q.algorithm, q.collective), std::string("no ") + to_string(q.collective) +
                                                        " by " + to_string(q.algorithm) +
                                                        "; choose another algorithm");
  WEFT_REQUIRE(q.world >= 1,
               "a world of " + std::to_string(q.world) + " ranks; it must have at least one");
  const std::string outside = " is outside the world of " + std::to_string(q.world);
  WEFT_REQUIRE(q.rank >= 0 && q.rank < q.world, "rank " + std::to_string(q.rank) + outside);
  WEFT_REQUIRE(q.root >= 0 && q.root < q.world, "root " + std::to_string(q.root) + outside);
  WEFT_REQUIRE(q.count >= 0, "a negative count: " + std::to_string(q.count));
  WEFT_REQUIRE(q.radix >= 2,
               "a tree of radix " + std::to_string(q.radix) + "; it must be at least 2");
  const bool nested =
      q.across && (*q.across == Algorithm::kDirect || *q.across == Algorithm::kHierarchical ||
                   *q.across == Algorithm::kTorus);
  WEFT_REQUIRE(!nested, std::string("hierarchical cannot use, between groups, the algorithm ") +
                            to_string(*q.across));
  WEFT_REQUIRE(q.chunk >= 0, "a negative chunk: " + std::to_string(q.chunk));
  WEFT_REQUIRE(q.topology == nullptr || q.topology->world() == q.world,
               "the topology has " + std::to_string(q.topology->world()) +
                   " ranks, but the world has " + std::to_string(q.world));
  WEFT_REQUIRE(q.collective != kBarrier || q.count == 0,
               "a barrier moves no elements; its count must be 0, not " + std::to_string(q.count));
}

bool moves_nothing(const Request& q) {
  return q.world == 1 || (q.count == 0 && q.collective != kBarrier);
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = i - 1;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

template <typename Enum>
Enum parse(const char* what, const std::string& name, std::span<const Enum> known) {
  const auto nearer = [&](Enum a, Enum b) {
    return edit_distance(name, to_string(a)) < edit_distance(name, to_string(b));
  };
  const Enum nearest = *std::min_element(known.begin(), known.end(), nearer);
  WEFT_REQUIRE(name == to_string(nearest), std::string("no ") + what + " is called '" + name +
                                               "'; did you mean '" + to_string(nearest) + "'?");
  return nearest;
}

}  // namespace

bool supports(Algorithm algorithm, Collective collective) {
  return (entry(algorithm).collectives & set_of({collective})) != 0;
}

Schedule make(const Request& request) {
  check(request);
  if (!moves_nothing(request)) return entry(request.algorithm).make(request);
  internal::Writer writer(request);  // with one rank, the output is the input
  writer.copy(internal::input(0, input_count(request)), internal::output(0, output_count(request)));
  return std::move(writer).done();
}

Cost cost(const Request& request) {
  check(request);
  return moves_nothing(request) ? Cost{} : entry(request.algorithm).cost(request);
}

std::int64_t input_count(const Request& q) {
  switch (q.collective) {
    case kReduceScatter:
    case kAllToAll: return q.world * q.count;
    case kBroadcast: return q.rank == q.root ? q.count : 0;
    case kScatter: return q.rank == q.root ? q.world * q.count : 0;
    default: return q.count;
  }
}

std::int64_t output_count(const Request& q) {
  switch (q.collective) {
    case kAllGather:
    case kAllToAll: return q.world * q.count;
    case kReduce: return q.rank == q.root ? q.count : 0;
    case kGather: return q.rank == q.root ? q.world * q.count : 0;
    default: return q.count;
  }
}

std::span<const Collective> collectives() { return kCollectives; }
std::span<const Algorithm> algorithms() { return kAlgorithms; }

const char* to_string(Collective collective) {
  return kCollectiveNames[static_cast<int>(collective)];
}
const char* to_string(Algorithm algorithm) { return entry(algorithm).name; }

Collective parse_collective(const std::string& name) {
  return parse<Collective>("collective", name, kCollectives);
}
Algorithm parse_algorithm(const std::string& name) {
  return parse<Algorithm>("algorithm", name, kAlgorithms);
}

}  // namespace weft::schedule
