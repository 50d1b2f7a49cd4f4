#include "weft/parallel/mesh/mesh.h"

#include <map>
#include <optional>

namespace weft::parallel {

struct Mesh::State {
  Group world;
  plan::MeshLayout layout;
  std::map<std::vector<int>, Group> groups;  // by members
};

Mesh::Mesh(Group world, std::vector<Axis> axes) {
  const int size = world.size();
  state_ =
      std::make_shared<State>(State{std::move(world), plan::MeshLayout(size, std::move(axes)), {}});
}

const plan::MeshLayout& Mesh::layout() const { return state_->layout; }
const Group& Mesh::world() const { return state_->world; }
int Mesh::coordinate(std::string_view axis) const {
  return layout().coordinate(world().rank(), axis);
}

const Group& Mesh::along(const std::vector<std::string>& axes) const {
  return group_of(layout().members(world().rank(), axes), axes);
}

const Group& Mesh::along_in_order(const std::vector<std::string>& axes) const {
  return group_of(layout().members_in_order(world().rank(), axes), axes);
}

const Group& Mesh::group_of(const std::vector<int>& members,
                            const std::vector<std::string>& axes) const {
  const auto known = state_->groups.find(members);
  if (known != state_->groups.end()) return known->second;
  std::string name;  // of the axes that have several ranks
  for (const std::string& axis : axes) {
    if (size(axis) > 1) name += (name.empty() ? "" : "+") + axis;
  }
  if (name.empty()) name = "self";
  return state_->groups.emplace(members, world().subgroup(members, name)).first->second;
}

}  // namespace weft::parallel
