// weft::replicate() runs the ranks of a group as threads of one process. A function written for one
// device runs on many replicas, which all-reduce, gather or broadcast among them.
#pragma once

#include <chrono>
#include <functional>

#include "weft/comm/group.h"

namespace weft::comm {

// Runs fn(group) on `replicas` threads that form one group, and returns when all are done. Each has
// processors / replicas intra-op threads. The first exception ends the collectives of the others
// (kAborted) and is the one that is thrown on.
void replicate(int replicas, const std::function<void(Group)>& fn,
               std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace weft::comm

namespace weft {
using comm::replicate;
}
