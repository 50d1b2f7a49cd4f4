// A collective algorithm as data: what each rank sends, receives, reduces and copies, in which round.
//
// A schedule is a pure function of (collective, algorithm, rank, world, root, counts). One executor (net) runs it, one property test proves
// it, the simulator costs it and the picture draws it. Elements, not bytes: the executor knows the type.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/schedule/topology.h"

namespace weft::schedule {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier
};
// Whether its result is a sum, product … of what the ranks give.
constexpr bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter || collective == Collective::kReduce;
}
enum class Algorithm : std::uint8_t {
  kDirect,
  kRing,
  kRecursiveDoubling,
  kHalvingDoubling,
  kDoubleBinaryTree,
  kSharded,
  kBinomial,
  kKnomial,
  kChain,
  kTorus,
  kHierarchical
};

// Which of the caller's arrays an offset counts in. kScratch is the executor's, Schedule::scratch elements long.
enum class Buffer : std::uint8_t { kInput, kOutput, kScratch };

enum class Action : std::uint8_t {
  kSend,        // [src, src+count) of buffer `from` goes to peer
  kRecv,        // from peer into [dst, dst+count) of buffer `to`
  kRecvReduce,  // from peer, combined into [dst, dst+count) of buffer `to`: to = op(to, received)
  kCopy,        // local, from -> to
  kReduce,      // local, to = op(to, from)
  kRead,        // shared memory: peer's [src, src+count) of `from` is copied into own `to` at dst
  kReadReduce,  // shared memory: peer's [src, src+count) of `from` is combined into own `to` at dst
  kMeet,        // shared memory: nobody goes on before all have come here
};

// Steps of one round: the executor starts the round's sends, completes its receives, then combines what kRecvReduce received and does the
// other actions, in the order listed. Between a pair of ranks messages match in order, and both ends of a message are in the same round; a
// message may have no elements (barrier). Round 0 has no messages: it is the copies before the first one.
struct Step {
  Action action = Action::kSend;
  int round = 0;
  int peer = -1;  // -1 for local actions
  Buffer from = Buffer::kInput;
  Buffer to = Buffer::kOutput;
  std::int64_t src = 0;
  std::int64_t dst = 0;
  std::int64_t count = 0;
  bool flipped = false;  // reducing actions: to = op(other, to), so that two ranks that compute the same sum get the same bits
};

// What one rank does. Steps are sorted by round.
struct Schedule {
  int rank = 0;
  int world = 1;
  std::int64_t scratch = 0;  // elements of scratch that the steps use
  std::vector<Step> steps;
  Collective collective = Collective::kAllReduce;
  std::int64_t input = 0;   // elements of this rank's input and output; 0 where it has none (a gather's output anywhere but on root)
  std::int64_t output = 0;  // and never touched then
  bool in_place = true;     // false: input is read after output is written, so where they are the same array the executor sets it aside
};

// What is asked for. `count` is, in elements:
//   kAllReduce, kBroadcast, kReduce: the length of input and of output (kBroadcast: input counts on root only);
//   kReduceScatter: the length of output; input is world * count;    kAllGather: the length of input; output is world * count;
//   kGather: the length of input; root's output is world * count;    kScatter: the length of output; root's input is world * count;
//   kAllToAll: the length of one block; input and output are world * count;    kBarrier: 0.
// Input is never written. Input and output may be the same array where their lengths agree (the executor then skips the first copy; see
// Schedule::in_place for all-to-all). kReduce, kGather: output exists on root only; kBroadcast, kScatter: input exists on root only.
struct Request {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int rank = 0;
  int world = 1;
  int root = 0;
  std::int64_t count = 0;
  // Null: all ranks alike. Otherwise it has `world` ranks; it may be shared by all threads.
  std::shared_ptr<const Topology> topology = nullptr;
  std::int64_t chunk = 0;  // pipelined algorithms: elements of a block; 0: up to 16 blocks of at least 16 Ki elements
  int radix = 4;           // kKnomial: children on each level of the tree, plus one; at least 2
  // kHierarchical: how all_reduce, broadcast and reduce cross the outermost level, by any algorithm that does the collective but kDirect,
  // kTorus and kHierarchical. None: all_reduce by kRing, the others by kChain.
  std::optional<Algorithm> across = std::nullopt;
};

// True where the algorithm can do the collective (each algorithm's header says which).
bool supports(Algorithm algorithm, Collective collective);

// The operands of a reduction are in an order fixed by (algorithm, world, root, count); all ranks of an all-reduce get the same bits.
// Throws Error(kInvalidArgument) where !supports(), for rank or root outside the world, for a negative count, a barrier's other than 0.
Schedule make(const Request& request);

// What the algorithm's file promises: the number of the last round, and the elements that the busiest rank sends. For shared memory: the
// number of kMeets, and the elements that the busiest rank reads from its peers. The same for all ranks (request.rank is not looked at).
// Constant time, but for kTorus and kHierarchical, which make the schedules of all ranks and count.
struct Cost {
  int rounds = 0;
  std::int64_t sent = 0;
  bool operator==(const Cost&) const = default;
};
Cost cost(const Request& request);

// What moves over the links of one level of the topology (see Link), in elements.
struct Traffic {
  std::int64_t total = 0;
  std::int64_t busiest = 0;  // out of the part that sends most: a host over the cluster's network, a rank on the innermost level
  bool operator==(const Traffic&) const = default;
};
// By level, of all ranks; without a topology all links are of one level. Makes the schedules of all ranks and counts.
std::vector<Traffic> traffic(const Request& request);

// Elements of request.rank's input and output, as Request says.
std::int64_t input_count(const Request& request);
std::int64_t output_count(const Request& request);

// All there are, in the order of the enums, for loops over them.
std::span<const Collective> collectives();
std::span<const Algorithm> algorithms();

const char* to_string(Collective collective);
const char* to_string(Algorithm algorithm);
// Parses what to_string gives ("all_reduce", "ring"); throws Error(kInvalidArgument) naming the nearest known name.
Collective parse_collective(const std::string& name);
Algorithm parse_algorithm(const std::string& name);

}  // namespace weft::schedule
