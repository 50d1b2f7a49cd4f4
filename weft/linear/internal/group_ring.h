// Hogwild! on the hosts of a comm::Group: where a rank is, and the messages between hosts.
#pragma once

#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "weft/base/deadline.h"
#include "weft/comm/group.h"
#include "weft/linear/hogwild/hogwild.h"
#include "weft/linear/solve/ranks.h"

namespace weft::linear::internal {

// Messages over Group's send and recv. A receive is posted when it is first asked for.
class GroupRing final : public RingMessages {
 public:
  // `hosts`: the first rank of each host; this rank is one of them.
  GroupRing(Group group, const std::vector<int>& hosts, std::size_t weights);
  void send(Kind kind, std::span<const float> values) override;
  std::optional<std::span<const float>> receive(Kind kind) override;
  void wait() override;

 private:
  struct Posted {
    at::Tensor tensor;
    Group::Work work;
  };
  std::int64_t size_of(Kind kind) const;

  Group group_;
  int previous_ = 0, next_ = 0;
  std::int64_t weights_;
  std::deque<Group::Work> sends_;
  Posted posted_[3];
  at::Tensor arrived_[3];
  std::optional<Deadline> patience_;  // of the wait since the last message
};

// This rank's place among the ranks of its host, for `weights` weights. Collective. Allocates
// memory of the group's host, which lives as long as the group.
class GroupPlace {
 public:
  GroupPlace(const Group& group, Ranks& ranks, std::size_t weights, const HogwildOptions& options);
  const HostPlace& place() const { return place_; }
  // Zeroes the shared memory, for another training. Collective.
  void reset(Ranks& ranks);

 private:
  HostPlace place_;
  std::size_t bytes_ = 0;
  std::optional<GroupRing> ring_;
};

}  // namespace weft::linear::internal
