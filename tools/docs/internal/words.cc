#include "tools/docs/internal/words.h"

#include <algorithm>
#include <string>

#include "weft/base/error.h"

namespace weft::docs::internal {
namespace {

using schedule::Algorithm;
using schedule::Graph;
using enum schedule::Collective;

constexpr Formula kDirect[] = {{kAllReduce, "3 meetings", "reads n + (W-2)⌈n/W⌉"},
                               {kReduceScatter, "2 meetings", "reads (W-1)n"},
                               {kAllGather, "2 meetings", "reads (W-1)n"},
                               {kAllToAll, "2 meetings", "reads (W-1)n"},
                               {kBroadcast, "2 meetings", "reads n"},
                               {kScatter, "2 meetings", "reads n"},
                               {kReduce, "2 meetings", "root reads (W-1)n"},
                               {kGather, "2 meetings", "root reads (W-1)n"},
                               {kBarrier, "1 meeting", "0"}};
constexpr Formula kRing[] = {{kAllReduce, "2(W-1)", "2n(W-1)/W"},
                             {kReduceScatter, "W-1", "(W-1)n"},
                             {kAllGather, "W-1", "(W-1)n"},
                             {kAllToAll, "W-1", "(W-1)n"}};
constexpr Formula kRecursiveDoubling[] = {{kAllReduce, "k; folded k+2", "kn; folded (k+1)n"},
                                          {kAllGather, "K", "(W-1)n"},
                                          {kBarrier, "K", "0"}};
constexpr Formula kHalvingDoubling[] = {
    {kAllReduce, "2k; folded 2k+2", "2n(P-1)/P; folded n more"},
    {kReduceScatter, "k; folded k+2", "(W-1)n; folded Wn"},
    {kBroadcast, "2k; folded 2k+1", "2n(P-1)/P; folded n more"}};
constexpr Formula kDoubleBinaryTree[] = {
    {kAllReduce, "2K+B-1", "2n"}, {kBroadcast, "K+B-1", "n"}, {kReduce, "K+B-1", "n"}};
constexpr Formula kSharded[] = {{kAllReduce, "2", "n + (W-2)⌈n/W⌉"},
                                {kBroadcast, "2", "n + (W-2)⌈n/W⌉"},
                                {kReduceScatter, "1", "(W-1)n"},
                                {kAllGather, "1", "(W-1)n"},
                                {kAllToAll, "1", "(W-1)n"},
                                {kScatter, "1", "(W-1)n"},
                                {kGather, "1", "n"}};
constexpr Formula kBinomial[] = {{kBroadcast, "K", "Kn"},
                                 {kReduce, "K", "n"},
                                 {kGather, "K", "the largest subtree but root's"},
                                 {kScatter, "K", "(W-1)n"},
                                 {kBarrier, "2K", "0"}};
constexpr Formula kKnomial[] = {{kBroadcast, "⌈log_r W⌉", "n for each child of root"},
                                {kReduce, "⌈log_r W⌉", "n"},
                                {kGather, "⌈log_r W⌉", "the largest subtree but root's"},
                                {kScatter, "⌈log_r W⌉", "(W-1)n"},
                                {kBarrier, "2⌈log_r W⌉", "0"}};
constexpr Formula kChain[] = {{kBroadcast, "W+B-2", "n"}, {kReduce, "W+B-2", "n"}};
constexpr Formula kTorus[] = {{kAllReduce, "2(R+C-2)", "2n(W-1)/W"}};
constexpr Formula kHierarchical[] = {{kAllReduce, "2(L-1) + X", "2n(1-H/W) + x(nH/W)"},
                                     {kBroadcast, "L + X", "about n + x(nH/W)"},
                                     {kReduce, "L + X", "about n + x(nH/W)"},
                                     {kReduceScatter, "L", "(W-W/H)n out of a host"},
                                     {kAllGather, "L", "(W-W/H)n into a host"}};

constexpr Words kWords[] = {
    {Algorithm::kDirect,
     "The ranks share memory, so nothing is sent: a rank reads the data of the others in "
     "place. Meetings (barriers) ensure that no rank reads data that is still being written.",
     "Graham, Shipman: MPI support for multi-core architectures, 2008, without their copy into a "
     "common segment",
     "", kDirect},
    {Algorithm::kRing,
     "Every rank sends only to the next one, in the order of the topology. So no link carries "
     "more than its share. The number of rounds grows with the number of ranks.",
     "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009",
     "It is for links that slow down with several streams at once. The cost model does not "
     "include this.",
     kRing},
    {Algorithm::kRecursiveDoubling,
     "The data that a rank has doubles in every round, so about log2 W rounds are enough.",
     "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, "
     "2005; all_gather: Bruck and others, 1997; "
     "barrier: Hensgen, Finkel, Manber, 1988",
     "It is for short arrays.", kRecursiveDoubling},
    {Algorithm::kHalvingDoubling,
     "Partners halve their data in every round, and then put it together again. It sends as "
     "many bytes as the ring, in about 2 log2 W rounds.",
     "Rabenseifner: Optimization of collective reduction operations, 2004; broadcast: Barnett and "
     "others, 1994",
     "It is for arrays of medium size over equal ranks.", kHalvingDoubling},
    {Algorithm::kDoubleBinaryTree,
     "Two trees each carry half of the data. A rank that is an inner node of one tree is a "
     "leaf of the other. So all ranks send about the same amount, over few hops.",
     "Sanders, Speck, Träff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
     "2009",
     "It is for long arrays over many ranks, if their number is not a power of two.",
     kDoubleBinaryTree},
    {Algorithm::kSharded,
     "Each rank owns a part of the array and exchanges it with all others at once. It has the "
     "fewest rounds, but the network must carry the messages of all pairs at once.",
     "the direct exchange of Thakur, Rabenseifner, Gropp, 2005; with shards on servers Li and "
     "others: Scaling distributed machine learning "
     "with the parameter server, 2014",
     "It is for few ranks.", kSharded},
    {Algorithm::kBinomial,
     "In every round, each rank that has the data sends it to one rank that does not.",
     "Johnsson, Ho: Optimum broadcasting and personalized communication in hypercubes, 1989",
     "It is for short arrays.", kBinomial},
    {Algorithm::kKnomial,
     "In every round, each rank that has the data sends it to radix - 1 ranks that do not. It "
     "has fewer rounds than the binomial tree, and more messages in each. The radix here is 4.",
     "Wilkins, Guo, Thakur, Dinda, Hardavellas: Generalized collective algorithms for the exascale "
     "era, 2023",
     "It is for short arrays over links on which several messages at once cost hardly more than "
     "one.",
     kKnomial},
    {Algorithm::kChain,
     "The array goes from rank to rank in consecutive blocks. It passes all ranks of a host "
     "before it goes to the next host.",
     "Worringen: Pipelining and overlapping for MPI collective operations, 2003; Patarasuk, Yuan, "
     "Faraj: Techniques for pipelined "
     "broadcast "
     "on Ethernet switched clusters, 2008",
     "It is for very long arrays.", kChain},
    {Algorithm::kTorus,
     "Rings along the rows and columns of a grid. The number of rounds grows with the sides "
     "of the grid. One half of the array begins along the rows, the other half along the "
     "columns.",
     "Mikami and others: Massively distributed SGD: ImageNet/ResNet-50 training in a flash, 2018; "
     "Jain, Sabharwal: Optimal bucket "
     "algorithms "
     "for large MPI collectives on torus interconnects, 2010",
     "It is for networks that are a torus or a mesh. Other algorithms send over links that "
     "these networks do not have.",
     kTorus},
    {Algorithm::kHierarchical,
     "It works first inside the groups of the topology, then across them. So the links "
     "between hosts carry each element once. Every rank of a host exchanges its share with "
     "other hosts, also if the hosts have different numbers of ranks.",
     "Cho, Finkler, Kung, Hunter: BlueConnect: Decomposing all-reduce for deep learning on "
     "heterogeneous network hierarchy, 2019",
     "It is for topologies in which some ranks are nearer to each other than others.",
     kHierarchical},
};

constexpr GossipWords kGossipWords[] = {
    {Graph::kRing,
     "Each rank averages with both neighbors. The matrix is circulant, so the mixing rate is "
     "known exactly. Its distance to 1 falls with the square of the number of ranks.",
     "2", "1/3 + 2/3 cos(2π/W), where W ≥ 3"},
    {Graph::kGrid,
     "Each rank averages with the ranks above, below, left and right in a grid of R rows and "
     "C ≥ R columns. The grid is as near to a square as possible, and wraps around (dashed "
     "ends).",
     "4, or 3 with two rows", "3/5 + 2/5 cos(2π/C), where R ≥ 3"},
    {Graph::kExponential,
     "The neighbors of a rank are the ranks 1, 2, 4, 8 … places further. Sources: Assran, "
     "Loizou, Ballas, Rabbat: Stochastic gradient push, 2019; for the rate, Ying, Yuan, Chen, "
     "Hu, Pan, Yin: Exponential graph is provably efficient for decentralized deep training, "
     "2021.",
     "⌈log2 W⌉", "(K-1)/(K+1), K = ⌈log2 W⌉, where W is even"},
    {Graph::kOnePeerExponential,
     "Each rank takes the neighbors of the exponential graph in turn, one in each round. If W "
     "is a power of two, all ranks have the exact average after log2 W rounds. Otherwise they "
     "never have it exactly (the same paper).",
     "1", "0 where W is a power of two"},
    {Graph::kRandomMatching,
     "New random pairs in every round, the same on all ranks, which have the same seed. If "
     "the number of ranks is odd, one rank has no partner. The rate is that of the expected "
     "square. Source: Boyd, Ghosh, Prabhakar, Shah: Randomized gossip algorithms, 2006.",
     "1", "√((W-2) / (2(W-1))) where W is even"},
};

}  // namespace

const char* const kIntroduction =
    R"(# Collective algorithms

This page describes every algorithm of `weft/schedule`: its rounds, what it sends, how it looks, and
when it is the fastest. `./dev docs` generates the page. It counts all figures from the schedules
that the executor runs. To see an algorithm for your world and topology, run
`weft schedule show ALGORITHM --ranks N`; `weft plan simulate` estimates its time.

- W ranks; n = count: the elements of the array, or of one block if each rank has a block
  (`weft/schedule/schedule.h`)
- k = ⌊log2 W⌋, K = ⌈log2 W⌉, P = 2^k; "folded": if W is not a power of two
- B blocks of a pipeline, r the radix; R rows, C columns; L levels, H hosts; X rounds and x(n)
  elements between the hosts

The last columns of an algorithm's table are counted for W ranks and n = 840. For hierarchical, the
8 ranks are on hosts of 4 and 4, the 13 ranks on hosts of 4, 4 and 5, and the 64 ranks on 8 hosts of
8.

## The fastest algorithm

These predictions use a cost model of messages with default values. A measured cost table
(`weft/plan/collectives/calibration.h`) may give other results. Arrays are float32. Ranks that
share memory use `direct` instead of these algorithms.

- Equal ranks: the planner's model (`weft/plan/collectives/choice.h`) over TCP on 10 Gbit/s
  Ethernet.
- Hosts: a simulation of each step over the links of the topology
  (`weft/plan/collectives/simulate.h`). Between hosts a link has 30 µs and 10 Gbit/s, with one
  network card per host. Inside a host it has 1 µs and 5 GB/s. Many messages at once cost nothing
  extra.

)";

const char* const kTable =
    R"(All collectives on three systems. The size is that of the longer one of input and output.

)";

const char* const kGossip = R"(
## Gossip

Gossip averages with neighbors instead of all ranks (`weft/schedule/gossip.h`, called by
`weft/comm/gossip.h`). A round costs each rank one message or a few, for any number of ranks. The
mixing rate is the factor by which, in the long run, one round brings the ranks' values nearer to
their average. The last columns give that rate for W ranks, and the rounds until the values are
equal or a thousand times nearer to their average.

)";

const Words& words_of(Algorithm algorithm) {
  const auto* found = std::find_if(std::begin(kWords), std::end(kWords), [&](const Words& words) {
    return words.algorithm == algorithm;
  });
  WEFT_CHECK(found != std::end(kWords),
             std::string("docs/algorithms.md has no words for ") + to_string(algorithm));
  return *found;
}

std::span<const GossipWords> gossip_words() { return kGossipWords; }

}  // namespace weft::docs::internal
