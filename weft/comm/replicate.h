// Replicas as threads of one process: a function written for one device runs on many, and sums, gathers or broadcasts across them.
#pragma once

#include <chrono>
#include <functional>

#include "weft/comm/group.h"

namespace weft::comm {

// Runs fn(group) on `replicas` threads that form one group, each with processors / replicas intra-op threads, and returns when all are
// done. The first exception ends the others' collectives (kAborted); it, not what follows from it, is thrown on.
void replicate(int replicas, const std::function<void(Group)>& fn, std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace weft::comm

namespace weft {
using comm::replicate;
}
