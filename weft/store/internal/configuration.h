// Members of the replicated store, and which of them decide together. Pure functions.
//
// Voters decide by majority. If their number is even, half of them decide too, if the voter with
// the lowest id is one of them. So of two voters the first decides alone, and survives the loss of
// the second. Two deciding sets always have a voter in common: two halves have the first one.
//
// With this rule, sets of voters that differ in one voter can decide without a common voter: {1} is
// half of {1, 2}, and {2, 3} is the majority of {1, 2, 3}. So voters change in two steps (joint
// consensus; Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014,
// section 6): in between, the old and the new voters must both decide.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/store/internal/bytes.h"

namespace weft::store::internal {

// Number of a member. A process that lost its memory is a new member, so ids are never used again.
// 0: none.
using MemberId = std::uint64_t;
using Term = std::uint64_t;
using Index = std::uint64_t;

struct Member {
  MemberId id = 0;
  std::uint32_t node = 0;         // number of the node that it runs on
  std::uint64_t incarnation = 0;  // random number of the process's memory
  std::string address;            // "host:port"
  bool operator==(const Member&) const = default;
};

struct Configuration {
  std::vector<Member> members;   // by id: voters, and others that follow the log without a vote
  std::vector<MemberId> voters;  // by id
  // Not empty: they must decide too, until the change is complete.
  std::vector<MemberId> old_voters;
  MemberId next_id = 1;

  bool is_joint() const { return !old_voters.empty(); }
  // Of the new or the old voters.
  bool is_voter(MemberId id) const;
  const Member* find(MemberId id) const;
  const Member* find_node(std::uint32_t node) const;
  bool operator==(const Configuration&) const = default;
};

// True if the members for which `agrees` is true decide.
bool is_quorum(const std::vector<MemberId>& voters, const std::function<bool(MemberId)>& agrees);
bool is_quorum(const Configuration& configuration, const std::function<bool(MemberId)>& agrees);

// The highest index that a quorum has, if `match` gives the highest index that a member has.
Index agreed_index(const Configuration& configuration, const std::function<Index(MemberId)>& match);

// First step of a change to `next`: the present voters become old voters and stay members. If the
// voters are the same, `next` itself, which needs no second step.
Configuration begin_change(const Configuration& now, Configuration next);
// Second step: the old voters that are no voters leave.
Configuration end_change(Configuration joint);

void put(ByteWriter& out, const Configuration& configuration);
// Throws Error(kCorrupt).
Configuration take_configuration(ByteReader& in);
void put(ByteWriter& out, const Member& member);
Member take_member(ByteReader& in);

}  // namespace weft::store::internal
