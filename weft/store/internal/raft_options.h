// Settings of a member of the consensus, and the time that it runs on.
#pragma once

#include <chrono>

#include "weft/store/internal/configuration.h"

namespace weft::store::internal {

// Time of the member's own clock, which never goes back. Each step of it is limited (Node), so it
// is late after a pause.
using Time = std::chrono::nanoseconds;

// For tests of the tests: breaks a rule on purpose.
enum class Flaw : std::uint8_t {
  kNone,
  kReadsWithoutQuorum,  // a leader answers reads without asking whether it still leads
  kVotesTwice,          // a member votes for several candidates of a term
  kForgetsSessions,     // a repeated request is applied again
  kCommitsAlone,        // a leader commits what only it has
  kOneStepChanges,      // voters change without joint consensus
  kTrustsClock,         // a jump of the clock counts as time
};

struct RaftTiming {
  Time heartbeat = std::chrono::milliseconds(50);
  // A follower that hears no leader for this long, or up to twice as long, asks for votes.
  Time election = std::chrono::milliseconds(400);
};

struct RaftOptions {
  MemberId me = 0;
  std::uint64_t cluster = 0;
  std::uint64_t seed = 0;
  RaftTiming timing;
  Flaw flaw = Flaw::kNone;
};

}  // namespace weft::store::internal
