// StateCopies: copies of each rank's part of a job's state, in memory that outlives the rank.
//
//   elastic::StateCopies copies(world);
//   copies.take({step, model.shards(), state});      // between two steps, when it is due
//   … a rank is lost: the others throw kPeerLost, and form the group again …
//   elastic::use_newest_state(next, {copies}, …);         // newest_state.h
//
// Each rank has two slots and writes them in turn, so one whole state remains while the next is
// written. The slots lie in memory that all ranks of the host can read: when a rank dies, the
// others still have its part. Where ranks are on several hosts, or do not share memory, the part is
// also sent to a rank elsewhere (copy_places()). So the loss of one host loses nothing. The loss of
// two that keep each other's copies does; a checkpoint on disk is then the newest state.
//
// Memory: twice the rank's part, and twice each part that it keeps for another host.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "weft/checkpoint/sharded.h"
#include "weft/comm/group.h"
#include "weft/elastic/holdings.h"

namespace weft::elastic {

class StateCopies {
 public:
  // Collective. Throws as Group's operations do.
  explicit StateCopies(const Group& world);
  ~StateCopies();
  StateCopies(const StateCopies&) = delete;
  StateCopies& operator=(const StateCopies&) = delete;

  // Copies this rank's part, and sends it where that is needed. Returns when the slices may change
  // again; the other ranks may still be copying. All ranks must have ended one call before one of
  // them begins the next; a training step between the calls, or a barrier, ensures it. Throws
  // Error(kUnavailable) if there is no memory, and as Group's operations do. Collective.
  void take(const checkpoint::Shards& shards);

  // A complete copy that this rank can read, of its own part or of another rank's.
  struct Copy {
    Holding what;
    at::Tensor block;  // uint8, packed (checkpoint/packed.h); it keeps the memory alive
  };
  // All complete copies that this rank can read, also when the group has failed. Not collective. No
  // rank may be inside take().
  std::vector<Copy> readable() const;

  // The job has ended on this rank. Another rank may have lost a peer in the last barrier, and may
  // still read this rank's copies in place. So their memory stays when this object ends, until the
  // process ends or the copies of another run have ended like this. The group does not stay.
  void keep_memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Keeps these copies until the process ends: other ranks may still read them in place. Any thread
// may call it. Null does nothing.
void keep_until_exit(std::shared_ptr<const StateCopies> copies);

}  // namespace weft::elastic
