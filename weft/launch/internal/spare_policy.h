// When the launcher starts a warm spare: a pure function.
#pragma once

#include <optional>

#include "weft/launch/supervision.h"

namespace weft::launch::internal {

// A spare starts so long after the job has become calm, so that it takes no processor time from a
// recovery.
constexpr auto kSpareDelay = std::chrono::seconds(1);
// The start after a spare that ended waits for kFirstBackOff, then twice, four times that and so
// on, up to this time.
constexpr auto kMaxSpareBackOff = std::chrono::seconds(60);
// Ends of spares that lived so long do not count as repeated.
constexpr auto kLongLife = std::chrono::seconds(60);

struct SpareSituation {
  int wanted = 0, running = 0;
  // Since when all ranks train, and none joins, grows or ends. nullopt: they do not.
  std::optional<Time> calm_since = {};
  int ended = 0;    // Spares that ended one after another, each soon after its start.
  Time last_end{};  // Of such a spare.
};

// The earliest time of the next start. nullopt: none is due, until the situation changes.
std::optional<Time> next_spare(const SpareSituation& situation);

}  // namespace weft::launch::internal
