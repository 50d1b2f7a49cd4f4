// Draws a mesh: as a table for the terminal, and as a picture.
#pragma once

#include <string>
#include <vector>

#include "weft/plan/mesh/mesh.h"

namespace weft::plan {

// Table of the ranks with their coordinates. Says for each axis whether its groups stay inside a
// host. `hosts`: number of ranks of each host, in rank order; empty: one host. Throws
// Error(kBadConfig) if the hosts do not have as many ranks as the mesh.
std::string show(const MeshLayout& mesh, const std::vector<int>& hosts = {});
// The same as an SVG, with a frame for each host and a box for each rank, colored by pipeline
// stage. Also throws Error(kBadConfig) for more than 512 ranks.
std::string show_svg(const MeshLayout& mesh, const std::vector<int>& hosts = {});

}  // namespace weft::plan
