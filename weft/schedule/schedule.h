// A collective algorithm as data: the sends, receives, reductions and copies of each rank, in
// rounds.
//
// A schedule is a pure function of (collective, algorithm, rank, world, root, counts). One executor
// (net) runs it, one property test proves it, the simulator computes its cost, and the picture
// draws it. It counts elements, not bytes: the executor knows the type.
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
// True if the collective reduces the ranks' inputs to a sum, product and so on.
constexpr bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
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

// Array to which an offset refers. kInput and kOutput are the caller's. kScratch is the executor's,
// Schedule::scratch elements long.
enum class Buffer : std::uint8_t { kInput, kOutput, kScratch };

enum class Action : std::uint8_t {
  // Send [src, src+count) of buffer `from` to peer.
  kSend,
  // Receive from peer into [dst, dst+count) of buffer `to`.
  kRecv,
  // Receive from peer and combine into [dst, dst+count) of buffer `to`: to = op(to, received).
  kRecvReduce,
  // Local copy: from -> to.
  kCopy,
  // Local reduction: to = op(to, from).
  kReduce,
  // Shared memory: copy peer's [src, src+count) of `from` to this rank's `to` at dst.
  kRead,
  // Shared memory: combine peer's [src, src+count) of `from` into this rank's `to` at dst.
  kReadReduce,
  // Shared memory: wait until all ranks have come here.
  kMeet,
};

// One step of a round. The executor starts the round's sends, completes its receives, combines what
// kRecvReduce received, and then runs the other actions, in the order listed. Between two ranks
// messages match in order, and both ends of a message are in the same round. A message may have no
// elements (barrier). Round 0 has no messages: it has the copies before the first message.
struct Step {
  Action action = Action::kSend;
  int round = 0;
  int peer = -1;  // Other rank of a message; -1 for local actions.
  Buffer from = Buffer::kInput;
  Buffer to = Buffer::kOutput;
  std::int64_t src = 0;
  std::int64_t dst = 0;
  std::int64_t count = 0;
  // For reducing actions: to = op(other, to), so that two ranks that compute the same sum get the
  // same bits.
  bool flipped = false;
};

// Steps of one rank, sorted by round.
struct Schedule {
  int rank = 0;
  int world = 1;
  std::int64_t scratch = 0;  // Elements of scratch that the steps use.
  std::vector<Step> steps;
  Collective collective = Collective::kAllReduce;
  // Elements of this rank's input and output. 0 where it has none (a gather's output on ranks other
  // than root); that array is then never touched.
  std::int64_t input = 0;
  std::int64_t output = 0;
  // False: input is read after output is written. If they are the same array, the executor first
  // copies the input.
  bool in_place = true;

  // Elements of an array.
  std::int64_t length(Buffer buffer) const {
    return buffer == Buffer::kInput ? input : buffer == Buffer::kOutput ? output : scratch;
  }
};

// A request for a schedule. `count` in elements:
//   kAllReduce, kBroadcast, kReduce   the length of input and of output (kBroadcast: input on root)
//   kReduceScatter   the length of output; input is world * count
//   kAllGather       the length of input; output is world * count
//   kGather          the length of input; root's output is world * count
//   kScatter         the length of output; root's input is world * count
//   kAllToAll        the length of one block; input and output are world * count
//   kBarrier         0
// Input is never written. Input and output may be the same array if their lengths agree. The
// executor then skips the first copy; for all-to-all see Schedule::in_place. kReduce, kGather:
// output exists on root only. kBroadcast, kScatter: input exists on root only.
struct Request {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int rank = 0;
  int world = 1;
  int root = 0;
  std::int64_t count = 0;
  // Null: all links are alike. Otherwise it has `world` ranks; all threads may share it.
  std::shared_ptr<const Topology> topology = nullptr;
  // Elements of a block, for pipelined algorithms. 0: up to 16 blocks of at least 16 Ki elements.
  std::int64_t chunk = 0;
  // kKnomial: children on each level of the tree, plus one; at least 2.
  int radix = 4;
  // kHierarchical: algorithm by which all_reduce, broadcast and reduce cross the outermost level.
  // Any algorithm that supports the collective, except kDirect, kTorus and kHierarchical. None:
  // kRing for all_reduce, kChain for the others.
  std::optional<Algorithm> across = std::nullopt;
};

// True if the algorithm supports the collective (each algorithm's file lists its collectives).
bool supports(Algorithm algorithm, Collective collective);

// Makes one rank's schedule. The order of a reduction's operands is fixed by (algorithm, world,
// root, count). All ranks of an all-reduce get the same bits. Throws Error(kInvalidArgument) if
// !supports(); for a rank or root outside the world; for a negative count; for a barrier with a
// count other than 0.
Schedule make(const Request& request);

// Cost that the algorithm's file promises: the number of the last round, and the elements that the
// busiest rank sends. For shared memory: the number of kMeets, and the elements that the busiest
// rank reads from its peers. It is the same for all ranks (request.rank is ignored). Constant time,
// except for kTorus and kHierarchical, which make the schedules of all ranks and count.
struct Cost {
  int rounds = 0;
  std::int64_t sent = 0;
  bool operator==(const Cost&) const = default;
};
Cost cost(const Request& request);

// Elements that move over the links of one level of the topology (see Link).
struct Traffic {
  std::int64_t total = 0;
  // Elements out of the part that sends most: a host over the cluster's network, a rank on the
  // innermost level.
  std::int64_t busiest = 0;
  bool operator==(const Traffic&) const = default;
};
// Traffic of all ranks, by level; without a topology all links are of one level. Makes the
// schedules of all ranks and counts.
std::vector<Traffic> traffic(const Request& request);

// Elements of request.rank's input and output, as Request says.
std::int64_t input_count(const Request& request);
std::int64_t output_count(const Request& request);

// All values, in the order of the enums.
std::span<const Collective> collectives();
std::span<const Algorithm> algorithms();

const char* to_string(Collective collective);
const char* to_string(Algorithm algorithm);
// Parses what to_string() returns ("all_reduce", "ring"). Throws Error(kInvalidArgument), naming
// the nearest known name.
Collective parse_collective(const std::string& name);
Algorithm parse_algorithm(const std::string& name);

}  // namespace weft::schedule
