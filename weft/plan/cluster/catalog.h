// Known accelerators, links and systems, with their sources: the published tables
// (bench/published/hardware_*.csv) and others of the field. Names are compared without case, blanks
// and signs; parts of a name are enough if they identify one entry ("A100-80GB SXM").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/plan/cluster/cluster.h"

namespace weft::plan {

struct System {
  std::string name;
  std::string accelerator;  // Name of a known accelerator.
  int per_node = 8;
  Wiring wiring = Wiring::kSwitch;
  std::string intra;          // Name of a known link; empty: the accelerator's own.
  double inter_gb_per_s = 0;  // Of a node, in one direction.
  std::string inter;          // Kind of network: "rdma", "tcp" or a name.
  double inter_share = 0;     // Measured share of inter_gb_per_s in collectives. 0: of its kind.
  double intra_share = 0;     // Measured share of the link in collectives. 0: of its kind.
  std::string software;       // Framework of the published measurements on it.
  std::string source;
};

// Each throws Error(kInvalidArgument), naming the nearest known name.
const Accelerator& known_accelerator(std::string_view name);
const System& known_system(std::string_view name);
// A known link's name, or a number of GB/s in one direction ("25", "12.5 GB/s", "100 Gb/s").
Link known_link(std::string_view name);

std::vector<std::string> accelerator_names();
std::vector<std::string> link_names();
std::vector<std::string> system_names();

// Nodes that usually carry this accelerator, when only its name is known: V100 SXM with 4 x 100
// Gb/s, A100 SXM with 8 x 200 Gb/s, H100 SXM and later with 8 x 400 Gb/s, PCIe cards with one 100
// Gb/s link, TPUs in a torus.
Cluster cluster_of_accelerator(std::string_view accelerator, int nodes, int per_node);
// `per_node` 0: that of the system.
Cluster cluster_of_system(std::string_view system, int nodes, int per_node = 0);

}  // namespace weft::plan
