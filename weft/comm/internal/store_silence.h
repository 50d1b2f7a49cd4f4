// Limits how long a rank waits for the store when the store's host has gone silent.
#pragma once

#include <chrono>

namespace weft::comm::internal {

// PyTorch's client of the TCPStore reads without a deadline. If the store's host loses its network
// or its power, no end of the connection comes, and the kernel gives up after a quarter of an hour.
// With this limit (TCP_USER_TIMEOUT), calls of the store fail when the host has not acknowledged
// them for so long. A store process that is stopped is no silent host: its kernel acknowledges.
//
// Applies to all connections of this process to this port that exist now.
void limit_silence_of_store(int port, std::chrono::milliseconds limit);

}  // namespace weft::comm::internal
