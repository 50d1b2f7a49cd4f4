// Numbers and texts as bytes, under the names that the store uses.
#pragma once

#include "weft/net/stream/bytes.h"

namespace weft::store::internal {

using net::internal::ByteReader;
using net::internal::ByteWriter;

}  // namespace weft::store::internal
