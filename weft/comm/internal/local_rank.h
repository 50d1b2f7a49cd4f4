// The number of this process's rank on its host, which is that of its device.
#pragma once

namespace weft::comm::internal {

// Of the identity with which this process has last called init(). Before: of the environment.
int local_rank();
void set_local_rank(int local_rank) noexcept;

}  // namespace weft::comm::internal
