// Mesh: the world's ranks on named axes, and the groups along these axes.
//
//   const Mesh mesh(world, {{"dp", 0}, {"tp", 2}});   // tp: neighbors; dp: all that is left
//   mesh["tp"].all_reduce(t);                         // over the ranks that differ along tp alone
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/group.h"
#include "weft/plan/mesh/mesh.h"

namespace weft::parallel {

using plan::Axis;

// A cheap value to copy. One thread at a time uses it.
class Mesh {
 public:
  // Does not communicate. Throws as plan::MeshLayout does.
  Mesh(Group world, std::vector<Axis> axes);

  const plan::MeshLayout& layout() const;
  const Group& world() const;
  // Size of an axis, 1 for an axis of the field that the mesh lacks; and this rank's place along
  // it.
  int size(std::string_view axis) const { return layout().size(axis); }
  int coordinate(std::string_view axis) const;

  // The group along one axis, or along several axes together ({"dp", "fsdp"}: all ranks with the
  // same weights). The first call makes the group and is collective over its ranks, which ask for
  // their groups in one order. Later calls return the same group. An axis of size 1 has a group of
  // one. Throws as Group::subgroup does.
  const Group& operator[](const std::string& axis) const { return along({axis}); }
  const Group& along(const std::vector<std::string>& axes) const;
  // As along(), with the ranks numbered by their coordinates in the order of `axes`. along()
  // numbers them in the mesh's order of axes.
  const Group& along_in_order(const std::vector<std::string>& axes) const;

 private:
  const Group& group_of(const std::vector<int>& members,
                        const std::vector<std::string>& axes) const;

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::parallel

namespace weft {
using parallel::Mesh;
}
