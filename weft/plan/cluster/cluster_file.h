// Reads and writes clusters as TOML files (clusters/*.toml).
//
//   name = "two kinds of nodes"
//   [node]                                   # one entry for each type of node
//   accelerator = ["A100 SXM 80GB", "V100 SXM2 32GB"]
//   devices = [8, 4]
//   count = [2, 4]
//   intra_gb_per_s = [300, 150]              # of one device; default: the accelerator's
//   inter_gb_per_s = [200, 50]               # of a node
//
// An accelerator that is not known is described in [accelerator], again with one entry for each.
#pragma once

#include <string>
#include <string_view>

#include "weft/plan/cluster/cluster.h"

namespace weft::plan {

// Strict: unknown keys, lists of unequal length, missing, negative and absurd values throw
// Error(kBadConfig), naming the line, the key and what to do. load_cluster() also throws what
// read_file() throws.
Cluster parse_cluster(std::string_view toml, const std::string& source);
Cluster load_cluster(const std::string& path);
// Text from which parse_cluster() makes an equal cluster.
std::string to_toml(const Cluster& cluster);

}  // namespace weft::plan
