// A mesh made visible: a table for the terminal, and a picture.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/mesh.h"

namespace weft::plan {

// The ranks with their places, and for each axis whether its groups stay inside a host.
// `hosts`: number of ranks of each host, in rank order; empty: one host.
// Throws Error(kBadConfig) when the hosts do not have the mesh's ranks.
std::string show(const MeshLayout& mesh, const std::vector<int>& hosts = {});
// The same as an SVG: a frame a host, a box a rank, colored by pipeline stage.
std::string show_svg(const MeshLayout& mesh, const std::vector<int>& hosts = {});

}  // namespace weft::plan
