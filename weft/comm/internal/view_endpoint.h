// A subset of the ranks of an endpoint, renumbered: a smaller group without connections of its own.
#pragma once

#include <memory>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::comm::internal {

// `ranks` lists ranks of `base`, including its own rank; rank i of the view is ranks[i]. Channels
// are shifted by `shift`, so that messages of the view and of the base do not mix. Errors name
// ranks of the base, so that a lost rank has the same number in all messages.
std::unique_ptr<net::Endpoint> make_view(std::shared_ptr<net::Endpoint> base,
                                         std::vector<int> ranks, net::Channel shift);

}  // namespace weft::comm::internal
