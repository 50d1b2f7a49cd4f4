// Messages over a socket, and an event loop's descriptors, under the names that the store uses.
#pragma once

#include "weft/net/stream/message_stream.h"
#include "weft/net/stream/polls.h"

namespace weft::store::internal {

using net::internal::MessageStream;
using net::internal::Polls;

}  // namespace weft::store::internal
