// Some ranks of an endpoint, numbered anew: a smaller group that needs no connections of its own.
#pragma once

#include <memory>
#include <vector>

#include "weft/net/endpoint.h"

namespace weft::comm::internal {

// `ranks` lists ranks of `base`, its own among them; rank i of the view is ranks[i]. Channels are
// moved by `shift`, so that messages of the view and of the base do not meet. Errors name ranks of
// the base: a lost rank is the same one for all who hear of it.
std::unique_ptr<net::Endpoint> make_view(std::shared_ptr<net::Endpoint> base,
                                         std::vector<int> ranks, net::Channel shift);

}  // namespace weft::comm::internal
