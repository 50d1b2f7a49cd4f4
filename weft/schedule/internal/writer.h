// Tools to write algorithms: ranges of elements, and a writer of steps.
#pragma once

#include <cstdint>
#include <span>

#include "weft/schedule/schedule.h"

namespace weft::schedule::internal {

struct Range {
  Buffer buffer = Buffer::kInput;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
inline Range input(std::int64_t begin, std::int64_t count) {
  return {Buffer::kInput, begin, count};
}
inline Range output(std::int64_t begin, std::int64_t count) {
  return {Buffer::kOutput, begin, count};
}
inline Range scratch(std::int64_t begin, std::int64_t count) {
  return {Buffer::kScratch, begin, count};
}

// Splits [0, count) into `parts` parts that differ by at most one element, the longer ones first.
// Returns the begin or the length of part `index`.
inline std::int64_t part_begin(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t longer = count % parts;
  return index * (count / parts) + (index < longer ? index : longer);
}
inline std::int64_t part_count(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}
// Part `index` of a range that is split in the same way.
inline Range part(Range whole, std::int64_t parts, std::int64_t index) {
  return {whole.buffer, whole.begin + part_begin(whole.count, parts, index),
          part_count(whole.count, parts, index)};
}

// rank modulo world. The rank may be negative, or larger than the world.
inline int wrap(int rank, int world) { return ((rank % world) + world) % world; }
// ceil(log2(world)).
int log2_ceil(int world);

// Number of blocks into which a pipelined algorithm cuts `count` elements: blocks of Request::chunk
// elements, or by default up to 16 blocks of at least kShortestBlock elements.
inline constexpr std::int64_t kShortestBlock = 16 * 1024;
int pipeline_blocks(const Request& request, std::int64_t count);

// Place of another collective's schedule as a phase of this one. Its rank r is ranks[r], its input
// and output are both `where`, its scratch begins at `scratch`, and its round r is round after + r.
struct Embedding {
  std::span<const int> ranks;
  Range where;
  std::int64_t scratch = 0;
  int after = 0;
};

// Collects one rank's steps, which may be added in any order of rounds. done() sorts them by round
// and keeps the order within a round. Empty ranges add no step, since both ends of a message see
// the same length. signal() and await() add messages without elements.
class Writer {
 public:
  explicit Writer(const Request& request);

  // Sets the round of the steps that follow.
  void at(int round) { round_ = round; }
  void need_scratch(std::int64_t elements) { schedule_.scratch = elements; }

  void send(int peer, Range from);
  void recv(int peer, Range to);
  void recv_reduce(int peer, Range to, bool flipped = false);
  void signal(int peer) { add({.action = Action::kSend, .peer = peer}); }
  void await(int peer) { add({.action = Action::kRecv, .peer = peer}); }

  // These take the length from `from`, and only the begin from `to`.
  void copy(Range from, Range to);
  void reduce(Range from, Range to, bool flipped = false);
  void read(int peer, Range from, Range to);
  void read_reduce(int peer, Range from, Range to);
  // Adds all steps of another schedule, except copies of a range onto itself: input and output are
  // one array here.
  void embed(const Schedule& phase, const Embedding& place);
  void meet() { add({.action = Action::kMeet}); }

  Schedule done() &&;

 private:
  void add(Step step);
  void add_range(Action action, int peer, Range from, Range to);

  Schedule schedule_;
  int round_ = 0;
};

}  // namespace weft::schedule::internal
