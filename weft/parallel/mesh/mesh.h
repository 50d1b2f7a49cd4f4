// The world's ranks on named axes, and the groups along them.
//
//   const Mesh mesh(world, {{"dp", 0}, {"tp", 2}});   // tp: neighbours; dp: what is left
//   mesh["tp"].all_reduce(t);                         // with the ranks that differ from this one along tp alone
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/comm/group.h"
#include "weft/plan/mesh.h"

namespace weft::parallel {

using plan::Axis;

// A cheap value. One thread at a time.
class Mesh {
 public:
  // Does not communicate. Throws as plan::MeshLayout does.
  Mesh(Group world, std::vector<Axis> axes);

  const plan::MeshLayout& layout() const;
  const Group& world() const;
  // 1 for an axis of the field that the mesh lacks, or what Group has: this rank's place along an axis.
  int size(std::string_view axis) const { return layout().size(axis); }
  int coordinate(std::string_view axis) const;

  // The group along one axis, or along several together ({"dp", "fsdp"}: all that have the same weights). Made when it is first asked for:
  // collective over its ranks then, which ask for their groups in one order; the same group later. A group of one along an axis of size 1.
  // Throws as Group::subgroup does.
  const Group& operator[](const std::string& axis) const { return along({axis}); }
  const Group& along(const std::vector<std::string>& axes) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::parallel

namespace weft {
using parallel::Mesh;
}
