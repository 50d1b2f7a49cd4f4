// train.device: the device of a rank.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace weft::train::internal {

// Throws Error(kBadConfig) for another name than cpu, cuda, cuda:N and auto. Does not use CUDA.
void check_device_name(const std::string& name);

// The device that `name` gives this rank. `local_rank` is its number on its host, `devices` the
// number of CUDA devices there. Throws Error(kBadConfig) if there is no such device.
c10::Device device_of(const std::string& name, int local_rank, int devices);
// As above, for this process. Uses CUDA unless the name is cpu, so that the process cannot be forked
// into ranks afterwards.
c10::Device device_of(const std::string& name);

}  // namespace weft::train::internal
