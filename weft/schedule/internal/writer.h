// What the algorithms are written with: ranges of elements, and a writer of steps.
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

// [0, count) split into `parts` that differ by one element at most, the longer ones first: where
// part `index` begins, how long it is.
inline std::int64_t part_begin(std::int64_t count, std::int64_t parts, std::int64_t index) {
  const std::int64_t longer = count % parts;
  return index * (count / parts) + (index < longer ? index : longer);
}
inline std::int64_t part_count(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return count / parts + (index < count % parts ? 1 : 0);
}
// That part of a range.
inline Range part(Range whole, std::int64_t parts, std::int64_t index) {
  return {whole.buffer, whole.begin + part_begin(whole.count, parts, index),
          part_count(whole.count, parts, index)};
}

// rank modulo world, for a rank that may be negative or too large by a few worlds.
inline int wrap(int rank, int world) { return ((rank % world) + world) % world; }
// ceil(log2(world)).
int log2_ceil(int world);

// Into how many blocks a pipelined algorithm cuts `count` elements: as the request says, or enough
// to overlap the hops, none shorter than this.
inline constexpr std::int64_t kShortestBlock = 16 * 1024;
int pipeline_blocks(const Request& request, std::int64_t count);

// Where another collective's schedule takes place as a phase of this one: its rank r is ranks[r],
// its input and output are both `where`, its scratch begins at `scratch`, its first round is the
// one after `after`.
struct Embedding {
  std::span<const int> ranks;
  Range where;
  std::int64_t scratch = 0;
  int after = 0;
};

// Collects one rank's steps. Steps may be added in any order of rounds; done() sorts them, and
// keeps the order within a round. Ranges without elements add nothing, since both ends of a message
// see the same length; signal() and await() are messages that have none.
class Writer {
 public:
  explicit Writer(const Request& request);

  // The round of the steps that follow.
  void at(int round) { round_ = round; }
  void need_scratch(std::int64_t elements) { schedule_.scratch = elements; }

  void send(int peer, Range from);
  void recv(int peer, Range to);
  void recv_reduce(int peer, Range to, bool flipped = false);
  void signal(int peer) { add({.action = Action::kSend, .peer = peer}); }
  void await(int peer) { add({.action = Action::kRecv, .peer = peer}); }

  // `to` begins where it says; its length is that of `from`.
  void copy(Range from, Range to);
  void reduce(Range from, Range to, bool flipped = false);
  void read(int peer, Range from, Range to);
  void read_reduce(int peer, Range from, Range to);
  // All steps of another schedule, but copies from input to output, which are one array here.
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
