// Topology-aware schedules over real transports, compared with a plain sum.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "weft/net/execute/executor.h"
#include "weft/net/testing/ranks.h"

namespace weft::net {
namespace executor_topology_test {

using namespace std::chrono_literals;
using internal::Group;
using internal::run_ranks;
using schedule::Algorithm;
using schedule::Collective;
using schedule::Request;
using schedule::Topology;

std::shared_ptr<const Topology> share(Topology topology) {
  return std::make_shared<const Topology>(std::move(topology));
}

// Small whole numbers, so that sums are exact in any order.
float element(int rank, std::int64_t i) { return static_cast<float>((7 * rank + 3 * i) % 11); }

// Reference: element i of the rank's output, for the collectives with topology-aware schedules.
float expected(const Request& q, std::int64_t i) {
  const std::int64_t place = q.collective == Collective::kReduceScatter ? q.rank * q.count + i : i;
  if (q.collective == Collective::kBroadcast) return element(q.root, i);
  if (q.collective == Collective::kAllGather)
    return element(static_cast<int>(i / q.count), i % q.count);
  float sum = 0;
  for (int rank = 0; rank < q.world; ++rank) sum += element(rank, place);
  return sum;
}

std::string text(const Request& q) {
  return std::string(to_string(q.algorithm)) + " " + to_string(q.collective) + " of " +
         std::to_string(q.count) + " over " +
         (q.topology ? q.topology->describe() : "ranks all alike") + ", root " +
         std::to_string(q.root) + ", blocks of " + std::to_string(q.chunk) + ", radix " +
         std::to_string(q.radix) +
         (q.across ? std::string(", across ") + to_string(*q.across) : "");
}

void run_and_compare(Group& group, const Request& request, bool in_place) {
  run_ranks(request.world, [&](int rank) {
    Request q = request;
    q.rank = rank;
    const schedule::Schedule steps = schedule::make(q);
    std::vector<float> input(static_cast<std::size_t>(steps.input)),
        output(static_cast<std::size_t>(steps.output), -1);
    for (std::size_t i = 0; i < input.size(); ++i)
      input[i] = element(rank, static_cast<std::int64_t>(i));
    std::vector<float> wanted(output.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wanted[i] = expected(q, static_cast<std::int64_t>(i));
    const bool one_array = in_place && input.size() == output.size();
    std::vector<float>& result = one_array ? input : output;
    Endpoint& endpoint = *group[static_cast<std::size_t>(rank)];
    run(steps, endpoint,
        {.input = input.data(),
         .output = result.data(),
         .channel = 3,
         .deadline = Deadline::in(20s)});
    EXPECT_TRUE(result == wanted) << text(q) << (one_array ? ", in place" : "") << ", rank " << rank
                                  << " over " << endpoint.name();
  });
}

// Roots inside and at the ends; a length that does not divide, and one whose messages have several
// pieces.
void run_all(Group& group, Request q) {
  for (const Collective collective : schedule::collectives()) {
    if (collective == Collective::kBarrier || collective == Collective::kGather ||
        collective == Collective::kScatter || collective == Collective::kAllToAll ||
        !supports(q.algorithm, collective)) {
      continue;
    }
    const bool rooted = collective == Collective::kBroadcast || collective == Collective::kReduce;
    for (const std::int64_t count : {1, 101, 70'001}) {
      for (const int root : rooted ? std::vector{0, q.world - 2} : std::vector{0}) {
        q.collective = collective;
        q.count = count;
        q.root = root;
        run_and_compare(group, q, /*in_place=*/count == 101);
      }
    }
  }
}

class OverTransports : public testing::TestWithParam<bool> {
 protected:
  static Group make(int world) {
    return GetParam() ? internal::make_tcp(world) : make_inproc(world);
  }
};

TEST_P(OverTransports, HierarchicalEqualsThePlainSumOnEqualAndUnequalHosts) {
  using schedule::Level;
  using schedule::Scope;
  const std::shared_ptr<const Topology> topologies[] = {
      share(Topology::hosts({2, 2})), share(Topology::hosts({3, 1, 2})),
      // Ranks assigned round-robin to hosts, and NUMA nodes within the hosts.
      share(Topology(
          6, {{},
              Level{Scope::kHost, schedule::default_link(Scope::kHost), {0, 1, 0, 1, 0, 1}},
              Level{Scope::kNuma, schedule::default_link(Scope::kNuma), {0, 1, 0, 2, 3, 2}}}))};
  for (const auto& topology : topologies) {
    Group group = make(topology->world());
    Request q{
        .algorithm = Algorithm::kHierarchical, .world = topology->world(), .topology = topology};
    run_all(group, q);
    q.chunk = 1000;
    run_all(group, q);
  }
}

TEST_P(OverTransports, HierarchicalUsesOtherAlgorithmsBetweenHosts) {
  const auto topology = share(Topology::hosts({2, 2, 1}));
  Group group = make(5);
  for (const Algorithm across :
       {Algorithm::kRecursiveDoubling, Algorithm::kHalvingDoubling, Algorithm::kDoubleBinaryTree}) {
    const Request q{.algorithm = Algorithm::kHierarchical,
                    .world = 5,
                    .count = 10'001,
                    .topology = topology,
                    .across = across};
    run_and_compare(group, q, /*in_place=*/false);
  }
}

TEST_P(OverTransports, TorusAndMeshEqualThePlainSum) {
  for (const bool wraps : {true, false}) {
    Group group = make(6);
    run_all(group, {.algorithm = Algorithm::kTorus,
                    .world = 6,
                    .topology = share(Topology::grid({2, 3, wraps}))});
  }
}

TEST_P(OverTransports, ChainsAndRingsFollowTheHosts) {
  const auto topology = share(Topology(
      5,
      {{},
       {schedule::Scope::kHost, schedule::default_link(schedule::Scope::kHost), {0, 1, 0, 1, 1}}}));
  Group group = make(5);
  for (const Algorithm algorithm : {Algorithm::kChain, Algorithm::kRing}) {
    for (const std::int64_t chunk : {0, 900})
      run_all(group, {.algorithm = algorithm, .world = 5, .topology = topology, .chunk = chunk});
  }
}

TEST_P(OverTransports, TreesOfEveryRadixEqualThePlainSum) {
  Group group = make(7);
  for (const int radix : {2, 3, 4, 7, 9})
    run_all(group, {.algorithm = Algorithm::kKnomial, .world = 7, .radix = radix});
}

INSTANTIATE_TEST_SUITE_P(InprocAndTcp, OverTransports, testing::Bool());

}  // namespace executor_topology_test
}  // namespace weft::net
